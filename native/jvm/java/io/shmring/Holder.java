package io.shmring;

/** What messages lie in: a {@link Lease} or a {@link Range}. */
interface Holder {
  Ring ring();

  /** Whoever looks into the messages locks this, and calls check() first. */
  Object lock();

  /**
   * @throws RingException if it was closed
   */
  void check();
}
