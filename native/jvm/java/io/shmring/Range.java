package io.shmring;

import java.util.Iterator;

/**
 * Messages that a reader reads without taking them. This object does not keep producers from
 * overwriting the messages: a branch or a lease has to hold them. After reading a message, call
 * {@link #confirm} to check that the message was held until then.
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
   * Throws a RingException with status OVERRUN if the message with this id is no longer held: what
   * was read of the message may be wrong, because producers may have overwritten it.
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
