package io.shmring;

import java.time.Duration;

/** A moment on CLOCK_MONOTONIC, which System.nanoTime() reads on Linux. */
final class Deadline {
  static final long NEVER = Long.MAX_VALUE;

  private Deadline() {}

  static long in(Duration timeout) {
    long now = System.nanoTime();
    long nanos = nanos(timeout);
    return nanos >= NEVER - now ? NEVER : now + Math.max(nanos, 0);
  }

  /** Converts to nanoseconds; a duration that does not fit becomes NEVER, or as long ago. */
  static long nanos(Duration duration) {
    try {
      return duration.toNanos();
    } catch (ArithmeticException error) {
      return duration.isNegative() ? -NEVER : NEVER;
    }
  }

  /** A wait ends after 50 ms, or 20 ms for each sleeper of the ring, so this is called often enough. */
  static void checkInterrupt() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted while waiting for a ring");
    }
  }
}
