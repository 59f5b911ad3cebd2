package io.shmring;

import java.time.Duration;

/** A moment on CLOCK_MONOTONIC, which System.nanoTime() reads on Linux. */
final class Deadline {
  static final long NEVER = Long.MAX_VALUE;

  private Deadline() {}

  static long in(Duration timeout) {
    long now = System.nanoTime();
    long nanos;
    try {
      nanos = timeout.toNanos();
    } catch (ArithmeticException error) {
      return NEVER;
    }
    return nanos >= NEVER - now ? NEVER : now + Math.max(nanos, 0);
  }

  /** A wait ends after 50 ms, or 20 ms for each sleeper of the ring, so that this is asked often enough. */
  static void checkInterrupt() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted while waiting for a ring");
    }
  }
}
