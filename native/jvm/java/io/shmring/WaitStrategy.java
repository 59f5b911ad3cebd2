package io.shmring;

// CHANGE: edit this for a new wait strategy
/**
 * The way in which a producer or a consumer waits. The strategies have the order of
 * shmring_wait_strategy in shmring.h, because the C library gets their ordinal numbers.
 */
public enum WaitStrategy {
  /** Spins for a short time, then sleeps until woken up. */
  DEFAULT,
  /** Polls all the time, which uses a whole core. */
  SPIN,
  /** Polls, and yields the core between two polls. */
  YIELD,
  /** Polls, and sleeps for a fixed time between two polls; needs no wake-up. */
  SLEEP,
  /** Sleeps at once until woken up. */
  FUTEX
}
