import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.time.Duration;

/** Takes once with a head start of ten messages, and prints how many there were: `HeadStartCheck RING poll|drain`. */
public final class HeadStartCheck {
  private static final Duration MINUTE = Duration.ofSeconds(60);
  private static final Duration TEN_MINUTES = Duration.ofMinutes(10);

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
      System.out.println(arguments[1].equals("drain") ? drained(consumer) : taken(consumer));
    }
  }

  private static int taken(Consumer consumer) throws InterruptedException {
    try (Lease lease = consumer.poll(100, Long.MAX_VALUE, TEN_MINUTES).orElseThrow()) {
      return lease.count();
    }
  }

  private static int drained(Consumer consumer) throws InterruptedException {
    return consumer.drain(message -> {}, 100, TEN_MINUTES);
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
