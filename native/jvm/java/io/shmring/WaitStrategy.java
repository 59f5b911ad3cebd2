package io.shmring;

// CHANGE: a new wait strategy
/** The way in which a producer or a consumer waits; in the order of shmring.h. */
public enum WaitStrategy {
  /** Spins for a short while, then sleeps until it is woken. */
  DEFAULT,
  /** Polls all the time, and takes a core for it. */
  SPIN,
  /** Polls, and gives up the core between two polls. */
  YIELD,
  /** Polls, and sleeps for fixed times in between; it needs no wake-up. */
  SLEEP,
  /** Sleeps at once until it is woken. */
  FUTEX
}
