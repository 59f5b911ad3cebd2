import io.shmring.RingException;
import io.shmring.Status;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/** Common parts of this folder's programs. */
abstract class Checks {
  static final Duration PATIENCE = Duration.ofSeconds(600);

  /** A call that may be refused. */
  interface Use {
    void run() throws Exception;
  }

  static void check(boolean condition, String what) {
    if (!condition) {
      throw new AssertionError(what);
    }
  }

  static void refused(Status status, Use use) {
    Status found = refusalOf(use);
    check(found == status, "refused as " + found);
  }

  static Status refusalOf(Use use) {
    return thrown(RingException.class, use).status();
  }

  static void outside(Use use) {
    thrown(IndexOutOfBoundsException.class, use);
  }

  /** Returns the exception that a call throws, which has to be of this kind. */
  static <T extends Exception> T thrown(Class<T> kind, Use use) {
    try {
      use.run();
    } catch (Exception error) {
      if (kind.isInstance(error)) {
        return kind.cast(error);
      }
      throw new IllegalStateException(error);
    }
    throw new AssertionError("threw no " + kind.getSimpleName());
  }

  /** i, then as many dots as make i mod 700 bytes. */
  static String message(int i) {
    String number = Integer.toString(i);
    return number + ".".repeat(Math.max(i % 700 - number.length(), 0));
  }

  static String text(byte[] bytes) {
    return new String(bytes, StandardCharsets.US_ASCII);
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.US_ASCII);
  }

  static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Waits until a thread waits for a lock. */
  static void awaitBlocked(Thread thread) {
    while (thread.getState() != Thread.State.BLOCKED) {
      Thread.onSpinWait();
    }
  }
}
