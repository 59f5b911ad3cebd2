import static java.nio.charset.StandardCharsets.UTF_8;

import io.shmring.Producer;
import io.shmring.Ring;

/** Sends one message and the end marker to a ring. */
public final class Two {
  public static void main(String[] arguments) throws InterruptedException {
    try (Ring ring = Ring.openOrCreate("orders", 65_536);
        Producer out = ring.producer("two")) {
      out.push("hello".getBytes(UTF_8));
      out.end();
    }
  }
}
