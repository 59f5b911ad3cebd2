import static java.nio.charset.StandardCharsets.UTF_8;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Lease;
import io.shmring.Ring;

/** Prints the messages of a ring until the end marker. */
public final class One {
  public static void main(String[] arguments) throws InterruptedException {
    try (Ring ring = Ring.openOrCreate("orders", 65_536);
        Consumer in = ring.consumer("billing", BranchOptions.EARLIEST)) {
      while (true) {
        try (Lease lease = in.take()) {
          System.out.println(new String(lease.message().bytes(), UTF_8));
        }
      }
    } catch (EndOfStreamException end) {
      // The producer ended the stream.
    }
  }
}
