import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * One process of a measurement: `Side PEER`. It lives for many measurements, so that they find compiled
 * code; a line on its input asks for one: `send|receive|ping|pong key=value ...`. It answers `ready`,
 * waits for `go`, answers with the result, waits for `close`, and answers `closed`; or with `failed:
 * ...`. It ends when its input does.
 */
public final class Side {
  private static final int MOST_TRIPS = 4_000_000;

  private static final BlockingQueue<String> LINES = new LinkedBlockingQueue<>();

  private final Peer peer;
  private final Map<String, String> options;

  private Side(Peer peer, Map<String, String> options) {
    this.peer = peer;
    this.options = options;
  }

  public static void main(String[] arguments) throws Exception {
    Peer peer = (Peer) Class.forName(arguments[0]).getDeclaredConstructor().newInstance();
    Thread input = new Thread(Side::listen, "input");
    input.setDaemon(true);
    input.start();
    while (true) {
      String[] words = LINES.take().split(" ");
      Map<String, String> options = new HashMap<>();
      for (String word : words) {
        int equals = word.indexOf('=');
        if (equals > 0) {
          options.put(word.substring(0, equals), word.substring(equals + 1));
        }
      }
      Side side = new Side(peer, options);
      try {
        side.measure(words[0]);
        System.out.println("closed");
      } catch (Throwable error) { // the runner is to hear of any, also of a class that is missing
        error.printStackTrace();
        System.out.println("failed: " + error);
      }
    }
  }

  private static void listen() {
    try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in))) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        LINES.add(line);
      }
    } catch (IOException gone) {
      // The runner's death ends this side, like its end of input.
    }
    Runtime.getRuntime().halt(0); // the runner is gone, so no thread may wait for another process
  }

  private void measure(String act) throws Exception {
    switch (act) {
      case "send" -> send();
      case "receive" -> receive();
      case "ping" -> ping();
      case "pong" -> pong();
      default -> throw new IllegalArgumentException(act);
    }
  }

  private int bytes() {
    return Integer.parseInt(options.get("bytes"));
  }

  private long nanos() {
    return (long) (Double.parseDouble(options.get("seconds")) * 1e9);
  }

  private Path folder() {
    return Path.of(options.get("folder"));
  }

  /** Answers, and waits for a word of the runner; meanwhile the transport goes on. */
  private void say(String answer) throws InterruptedException {
    System.out.println(answer);
    while (LINES.poll(1, TimeUnit.MILLISECONDS) == null) {
      peer.idle();
    }
  }

  private Peer.Link link() {
    return new Peer.Link(folder(), "there", options.get("how"), bytes());
  }

  private void send() throws Exception {
    try (Peer.Sender out = peer.sender(link())) {
      say("ready");
      say(stream(out, bytes(), nanos()));
    }
  }

  private static String stream(Peer.Sender out, int bytes, long nanos) throws Exception {
    long source = Tally.source(bytes);
    int step = out.step();
    long sent = 0;
    long start = System.nanoTime();
    do {
      out.send(source, bytes, step);
      sent += step;
    } while (System.nanoTime() - start < nanos);
    out.end(source);
    long total = sent * out.sum(source, bytes);
    Tally.UNSAFE.freeMemory(source);
    return result("start", start, "bytes", sent * bytes, "sum", total);
  }

  private void receive() throws Exception {
    try (Peer.Receiver in = peer.receiver(link())) {
      say("ready");
      Tally tally = new Tally();
      while (!tally.ended) {
        in.poll(tally);
      }
      say(result("end", System.nanoTime(), "bytes", tally.bytes, "sum", tally.sum));
    }
  }

  private void ping() throws Exception {
    int bytes = bytes();
    try (Peer.Sender out = peer.sender(link());
        Peer.Receiver in = peer.receiver(link().back())) {
      say("ready");
      say(trips(out, in, bytes, nanos()));
    }
  }

  private String trips(Peer.Sender out, Peer.Receiver in, int bytes, long nanos)
      throws Exception {
    long source = Tally.source(bytes);
    int[] times = new int[MOST_TRIPS];
    int count = 0;
    Tally tally = new Tally();
    long start = System.nanoTime();
    long before = start;
    while (before - start < nanos && count < MOST_TRIPS) {
      out.send(source, bytes, 1);
      long awaited = tally.bytes + bytes;
      while (tally.bytes < awaited) {
        in.poll(tally);
      }
      long after = System.nanoTime();
      times[count++] = (int) (after - before);
      before = after;
      if (count % 1024 == 0) {
        peer.idle();
        before = System.nanoTime();
      }
    }
    out.send(source, Tally.END, 1);
    Tally.UNSAFE.freeMemory(source);
    Arrays.sort(times, 0, count);
    return result(
        "median_ns", times[count / 2],
        "p99_ns", times[count - 1 - count / 100],
        "p999_ns", times[count - 1 - count / 1000]);
  }

  private void pong() throws Exception {
    int bytes = bytes();
    try (Peer.Sender out = peer.sender(link().back());
        Peer.Receiver in = peer.receiver(link())) {
      say("ready");
      say(echo(out, in, bytes));
    }
  }

  private static String echo(Peer.Sender out, Peer.Receiver in, int bytes) throws Exception {
    long source = Tally.source(bytes);
    Tally tally = new Tally();
    while (!tally.ended) {
      long before = tally.bytes;
      in.poll(tally);
      if (tally.bytes > before) {
        out.send(source, bytes, 1);
      }
    }
    Tally.UNSAFE.freeMemory(source);
    return result("end", System.nanoTime());
  }

  private static String result(Object... pairs) {
    StringBuilder text = new StringBuilder("{");
    for (int i = 0; i < pairs.length; i += 2) {
      text.append(i == 0 ? "\"" : ", \"").append(pairs[i]).append("\": ").append(pairs[i + 1]);
    }
    return text.append('}').toString();
  }
}
