package io.shmring.spark.read;

/** When to do something costly during a wait: each pause is twice as long as the one before. */
final class Backoff {
  private long next;

  Backoff(long firstMillis) {
    this.next = firstMillis;
  }

  /** Whether it is time again, after a wait of this length. */
  boolean isDue(long waitedMillis) {
    if (waitedMillis < next) {
      return false;
    }
    next = 2 * waitedMillis;
    return true;
  }
}
