package io.shmring.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.shmring.spark.functions.SettingsCheck;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.ProcessBuilder.Redirect;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkFiles;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/**
 * Runs the process that looks after this executor's rings and sidecars (shmring.spark.attendant).
 * The process's standard input is a pipe from this JVM: when the JVM dies, for whatever reason, the
 * pipe ends, and the attendant ends with all processes that it has started.
 */
final class Attendant implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(Attendant.class);
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final long[] BACKOFF_MILLIS = {500, 1000, 2000, 5000, 15_000, 60_000};
  private static final long SOON_MILLIS = 30_000;
  // CHANGE: edit this for a new option of a sidecar
  // Seconds that close() waits before it kills the attendant: more than the 20 s after which the
  // attendant kills its sidecars (_GRACE in attendant.py).
  private static final int GRACE_SECONDS = 30;
  private static final int FIRST_WORD_SECONDS = 60;

  private final Config config;
  private final String line;
  private final Thread thread;
  // Opened by the attendant's first report, or when the attendant ends without a report.
  private final CountDownLatch spoken = new CountDownLatch(1);
  private final Map<String, Long> metrics = new ConcurrentHashMap<>();
  private Process process;
  private boolean closed;

  Attendant(Config config) {
    this.config = config;
    this.line = config.json() + "\n";
    this.thread = new Thread(this::run, "shmring-attendant");
    thread.setDaemon(true);
  }

  /**
   * Starts the attendant, and waits at most a minute for its first report. Before this report, the
   * attendant makes the request rings of the sidecars, so tasks that begin later find the rings.
   * Each task then waits until its sidecar's workers have started.
   */
  void start() {
    thread.start();
    try {
      if (!spoken.await(FIRST_WORD_SECONDS, TimeUnit.SECONDS)) {
        LOG.warn("the sidecars' attendant has said nothing for {} s", FIRST_WORD_SECONDS);
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** Returns a metric that the attendant has reported; zero before its first report. */
  long metric(String name) {
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
      Thread.currentThread().interrupt(); // interrupted by close()
    }
  }

  /** Starts the process and reads its reports until it ends. Returns why it ended. */
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
    // Leave this pipe open as long as the JVM lives: the attendant ends when the pipe ends.
    OutputStream input = process.getOutputStream();
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

  record Config(
      String python,
      List<String> archives,
      Map<String, Map<String, String>> sidecars,
      Map<String, Map<String, String>> rings) {
    // CHANGE: edit this for a new metric
    private static final List<String> METRICS_OF_SIDECAR =
        List.of("running", "restarts", "workers", "waitingSlots");
    private static final List<String> METRICS_OF_RING = List.of("usedSlots", "claimed");

    static Config of(SparkConf conf) {
      String usual = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
      String python = conf.get(SettingsCheck.PYTHON, conf.get("spark.pyspark.python", usual));
      return new Config(
          python,
          archives(conf.get("spark.submit.pyFiles", "")),
          group(conf, SettingsCheck.SIDECAR),
          group(conf, SettingsCheck.RING));
    }

    /**
     * Returns the names of the .zip and .egg files: Python looks for modules inside them.
     *
     * @param files paths of files, separated by commas
     */
    private static List<String> archives(String files) {
      return Stream.of(files.split(","))
          .map(file -> file.substring(file.lastIndexOf('/') + 1))
          .filter(file -> file.endsWith(".zip") || file.endsWith(".egg"))
          .toList();
    }

    /**
     * Groups settings named prefix + "NAME.KEY" by NAME. A NAME may have dots, so KEY is the text
     * after the last dot. Accepts any KEY, because the attendant refuses unknown keys.
     */
    private static Map<String, Map<String, String>> group(SparkConf conf, String prefix) {
      Map<String, Map<String, String>> groups = new TreeMap<>();
      for (Tuple2<String, String> entry : conf.getAllWithPrefix(prefix)) {
        int dot = entry._1().lastIndexOf('.');
        if (dot < 1) {
          throw new IllegalArgumentException(prefix + entry._1() + " is no " + prefix + "NAME.OPTION");
        }
        groups
            .computeIfAbsent(entry._1().substring(0, dot), name -> new TreeMap<>())
            .put(entry._1().substring(dot + 1), entry._2());
      }
      return groups;
    }

    boolean isEmpty() {
      return sidecars.isEmpty() && rings.isEmpty();
    }

    List<String> metricNames() {
      List<String> names = new ArrayList<>();
      for (String sidecar : sidecars.keySet()) {
        METRICS_OF_SIDECAR.forEach(metric -> names.add("sidecar." + sidecar + "." + metric));
      }
      for (String ring : rings.keySet()) {
        METRICS_OF_RING.forEach(metric -> names.add("ring." + ring + "." + metric));
      }
      return names;
    }

    List<String> command() {
      // With -P, Python imports no modules from the current folder: a json.py there would replace
      // Python's own. Modules that came with the job are in PYTHONPATH.
      return List.of(python, "-P", "-m", "shmring.spark.attendant");
    }

    /**
     * Returns the paths in which the attendant and the sidecars look for modules that came with the
     * job.
     *
     * @param folder the folder into which Spark puts the job's files
     */
    String modulePath(String folder) {
      Stream<String> inArchives = archives.stream().map(name -> folder + "/" + name);
      return Stream.concat(Stream.of(folder), inArchives).collect(Collectors.joining(":"));
    }

    /** Returns the settings as JSON, unchecked: the attendant checks them. */
    String json() {
      ObjectNode json = JSON.createObjectNode();
      json.set("sidecars", JSON.valueToTree(sidecars));
      json.set("rings", JSON.valueToTree(rings));
      return json.toString();
    }
  }
}
