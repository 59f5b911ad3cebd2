package io.shmring;

/** How messages are reached: through a {@link Lease} or a {@link Range}, as long as it is open. */
interface Access {
  Ring ring();

  /** Locked while messages are looked into, behind a call of check(). */
  Object lock();

  /**
   * @throws RingException if it was closed
   */
  void check();
}
