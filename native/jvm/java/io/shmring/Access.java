package io.shmring;

/** Access to messages: through a {@link Lease} or a {@link Range}, as long as it is open. */
interface Access {
  Ring ring();

  /** Locked while messages are read, after a call of check(). */
  Object lock();

  /**
   * @throws RingException if it was closed
   */
  void check();
}
