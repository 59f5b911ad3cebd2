import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.time.Duration;

/** Takes once with a head start of ten messages, and prints how many there were: `HeadStartCheck RING`. */
public final class HeadStartCheck {
  private static final Duration MINUTE = Duration.ofSeconds(60);

  private HeadStartCheck() {}

  public static void main(String[] arguments) throws Exception {
    try (Ring ring = Ring.attach(arguments[0]);
        Consumer consumer = ring.consumer("a", BranchOptions.EARLIEST, "c")) {
      refused(consumer, 513, MINUTE);
      refused(consumer, -1, MINUTE);
      refused(consumer, 1, MINUTE.plusNanos(1));
      refused(consumer, 1, Duration.ofSeconds(Long.MAX_VALUE));
      refused(consumer, 1, Duration.ZERO);
      refused(consumer, 1, Duration.ofSeconds(Long.MIN_VALUE));
      consumer.headStart(10, MINUTE);
      try (Lease lease = consumer.poll(100, Long.MAX_VALUE, Duration.ofSeconds(600)).orElseThrow()) {
        System.out.println(lease.count());
      }
    }
  }

  private static void refused(Consumer consumer, int messages, Duration patience) {
    try {
      consumer.headStart(messages, patience);
    } catch (RingException error) {
      if (error.status() == Status.INVALID) {
        return;
      }
      throw error;
    }
    throw new AssertionError(messages + " in " + patience);
  }
}
