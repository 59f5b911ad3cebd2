package io.shmring.spark.plugin;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.ProcessBuilder.Redirect;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkFiles;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The process that looks after this executor's rings and sidecars (shmring.spark.attendant). Its
 * standard input is a pipe from here: when this JVM dies, by whatever, the pipe ends, and so does
 * the attendant with all it has started.
 */
public final class Attendant implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(Attendant.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long[] BACKOFF_MILLIS = {500, 1000, 2000, 5000, 15_000, 60_000};
  private static final long SOON_MILLIS = 30_000;
  private static final int GRACE_SECONDS = 30;
  private static final int FIRST_WORD_SECONDS = 60;

  private final AttendantConfig config;
  private final String line;
  private final Thread thread;
  private final CountDownLatch spoken = new CountDownLatch(1); // or ended without a word
  private final Map<String, Long> metrics = new ConcurrentHashMap<>();
  private Process process;
  private boolean closed;

  public Attendant(AttendantConfig config) {
    this.config = config;
    this.line = config.json() + "\n";
    this.thread = new Thread(this::run, "shmring-attendant");
    thread.setDaemon(true);
  }

  /** Starts it; tasks that begin afterwards find the rings of the sidecars, and wait for workers. */
  public void start() {
    thread.start();
    try {
      if (!spoken.await(FIRST_WORD_SECONDS, TimeUnit.SECONDS)) {
        LOG.warn("the sidecars' attendant has said nothing for {} s", FIRST_WORD_SECONDS);
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** Zero until it is known. */
  public long metric(String name) {
    return metrics.getOrDefault(name, 0L);
  }

  private void run() {
    int failures = 0;
    try {
      while (true) {
        long begun = System.nanoTime();
        String end = attend();
        spoken.countDown();
        if (isClosed()) {
          return;
        }
        long lived = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
        failures = lived < SOON_MILLIS ? failures + 1 : 1;
        long pause = BACKOFF_MILLIS[Math.min(failures, BACKOFF_MILLIS.length) - 1];
        LOG.error("{}; it is started again in {} ms", end, pause);
        Thread.sleep(pause);
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt(); // closed
    }
  }

  /** Starts the process and reads what it says, until its end. */
  private String attend() throws InterruptedException {
    Process started;
    try {
      started = begin();
    } catch (IOException error) {
      return "the sidecars' attendant cannot be started: " + error.getMessage();
    }
    try (BufferedReader reader =
        new BufferedReader(
            new InputStreamReader(started.getInputStream(), StandardCharsets.UTF_8))) {
      for (String said = reader.readLine(); said != null; said = reader.readLine()) {
        for (Map.Entry<String, JsonNode> entry : JSON.readTree(said).properties()) {
          metrics.put(entry.getKey(), entry.getValue().longValue());
        }
        spoken.countDown();
      }
    } catch (IOException error) {
      LOG.warn("what the sidecars' attendant says cannot be read", error);
      started.destroy();
    }
    return "the sidecars' attendant has ended with status " + started.waitFor();
  }

  private synchronized Process begin() throws IOException {
    if (closed) {
      throw new IOException("closed");
    }
    ProcessBuilder builder = new ProcessBuilder(config.command()).redirectError(Redirect.INHERIT);
    String path = config.modulePath(Path.of(SparkFiles.getRootDirectory()).toAbsolutePath().toString());
    builder.environment().merge("PYTHONPATH", path, (others, ours) -> ours + ":" + others);
    process = builder.start();
    OutputStream input = process.getOutputStream(); // stays open as long as this JVM lives
    input.write(line.getBytes(StandardCharsets.UTF_8));
    input.flush();
    return process;
  }

  private synchronized boolean isClosed() {
    return closed;
  }

  @Override
  public void close() {
    Process last;
    synchronized (this) {
      closed = true;
      last = process;
    }
    thread.interrupt();
    if (last == null) {
      return;
    }
    last.destroy();
    try {
      if (!last.waitFor(GRACE_SECONDS, TimeUnit.SECONDS)) {
        last.destroyForcibly();
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }
}
