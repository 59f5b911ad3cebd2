package io.shmring;

import java.util.function.LongConsumer;

/**
 * A handle of the C library that one thread may close while another waits in it. A thread that uses
 * it holds the monitor of the object that owns it, also while it waits.
 *
 * <p>The monitor also keeps the ring mapped while Java reads or writes there: handlers, writers and
 * copies run with the monitor held, after a check that the owner is open, and closing takes the
 * monitor before the ring can be unmapped.
 */
final class Handle {
  private final LongConsumer interrupt;
  private volatile boolean closing;
  private long address; // changed only with both monitors held

  Handle(long address, LongConsumer interrupt) {
    this.address = address;
    this.interrupt = interrupt;
  }

  /** 0 when it has been freed. */
  long address() {
    return address;
  }

  /** Whether it may be used for more than giving messages back. */
  boolean isOpen() {
    return !closing && address != 0;
  }

  /** Ends the waits in it, and lets none begin, so that the owner's monitor becomes free. */
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
}
