package io.shmring.spark.read;

/** When to do something costly during a wait: each time after twice as long as the time before. */
final class Backoff {
  private long next;

  Backoff(long firstMillis) {
    this.next = firstMillis;
  }

  /** Whether it is time for it again, after so long a wait. */
  boolean isDue(long waitedMillis) {
    if (waitedMillis < next) {
      return false;
    }
    next = 2 * waitedMillis;
    return true;
  }
}
