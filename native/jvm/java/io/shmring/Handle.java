package io.shmring;

import java.util.function.LongConsumer;

/**
 * A handle of the C library that one thread closes while another may wait in it. Whoever uses it
 * holds the monitor of the object that owns it; a thread that waits holds that for as long.
 *
 * <p>The monitor is also what keeps the ring mapped while Java reads or writes there: a handler runs,
 * a writer fills and a message is copied with the monitor held and behind a look whether the owner is
 * open, and who closes takes it before the ring can be unmapped.
 */
final class Handle {
  private final LongConsumer interrupt;
  private volatile boolean closing;
  private long address; // changed by who holds both monitors

  Handle(long address, LongConsumer interrupt) {
    this.address = address;
    this.interrupt = interrupt;
  }

  /** 0 when it has been freed. */
  long address() {
    return address;
  }

  /** Whether it may still be used for more than giving back what is held. */
  boolean isOpen() {
    return !closing && address != 0;
  }

  /** Ends the waits in it, and lets none begin, so that the owner's monitor is to be had. */
  synchronized void endWaits() {
    closing = true;
    if (address != 0) {
      interrupt.accept(address);
    }
  }

  synchronized void free(LongConsumer how) {
    how.accept(address);
    address = 0;
  }

  /** Whether somebody has begun to close it; any thread may ask. */
  boolean isClosing() {
    return closing;
  }
}
