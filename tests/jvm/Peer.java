import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Kind;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import java.nio.charset.StandardCharsets;

/** One side of a pair: `produce RING COUNT` or `consume RING`, messages of every length. */
public final class Peer {
  private Peer() {}

  public static void main(String[] arguments) throws Exception {
    try (Ring ring = Ring.attach(arguments[1])) {
      switch (arguments[0]) {
        case "produce" -> produce(ring, Integer.parseInt(arguments[2]));
        case "consume" -> consume(ring);
        default -> throw new IllegalArgumentException(arguments[0]);
      }
    }
  }

  private static void produce(Ring ring, int count) throws Exception {
    try (Producer producer = ring.producer("java")) {
      for (int i = 0; i < count; i++) {
        producer.push(message(i));
      }
      producer.end();
    }
  }

  private static void consume(Ring ring) throws Exception {
    int i = 0;
    try (Consumer consumer = ring.consumer("pair", BranchOptions.EARLIEST)) {
      while (true) {
        try (Lease lease = consumer.take()) {
          Message message = lease.message();
          if (message.kind() == Kind.END) {
            System.out.println(i);
            return;
          }
          String expected = new String(message(i++), StandardCharsets.US_ASCII);
          String found = new String(message.bytes(), StandardCharsets.US_ASCII);
          if (!found.equals(expected)) {
            throw new AssertionError("message " + message.id() + " is " + found);
          }
        }
      }
    }
  }

  /** i, then as many dots as make i mod 700 bytes. */
  private static byte[] message(int i) {
    String number = Integer.toString(i);
    return (number + ".".repeat(Math.max(i % 700 - number.length(), 0)))
        .getBytes(StandardCharsets.US_ASCII);
  }
}
