package io.shmring;

import java.util.Iterator;

/**
 * Messages that were not taken, and that another branch or lease holds. A reader calls
 * {@link #confirm} afterwards to check that a message was still there.
 */
public final class Range extends Messages {
  private boolean closed;

  Range(Ring ring, long first, long end) {
    super(ring, first, end);
    ring.retain();
  }

  @Override
  public Iterator<Message> iterator() {
    confirm(first);
    return super.iterator();
  }

  /**
   * Throws a RingException if the message with this id may have been overwritten.
   */
  public void confirm(long id) {
    synchronized (this) {
      check();
      if (Native.floor(ring.handle()) > id) {
        throw new RingException(
            Status.OVERRUN, "ring \"%s\": message %d is no longer held and may be overwritten",
            ring.name(), id);
      }
    }
  }

  @Override
  public void close() {
    synchronized (this) {
      if (!closed) {
        closed = true;
        ring.release();
      }
    }
  }

  @Override
  Object lock() {
    return this;
  }

  @Override
  void check() {
    if (closed) {
      throw ring.closed("range");
    }
  }
}
