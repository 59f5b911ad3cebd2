package io.shmring;

import java.util.Iterator;
import java.util.Optional;

/**
 * Messages that were not taken, and that something else holds, such as a branch that stands before
 * them. A reader calls {@link #confirm} afterwards to check that a message was still there.
 */
public final class Range implements AutoCloseable, Iterable<Message>, Access {
  private final Ring ring;
  private final long first;
  private final long end;
  private boolean closed;

  Range(Ring ring, long first, long end) {
    this.ring = ring;
    this.first = first;
    this.end = end;
    ring.retain();
  }

  @Override
  public Iterator<Message> iterator() {
    confirm(first);
    return new Messages(this, Optional.empty(), first, end);
  }

  /**
   * Throws a RingException if the message with this id may have been overwritten.
   */
  public void confirm(long id) {
    synchronized (lock()) {
      check();
      if (Native.floor(ring.handle()) > id) {
        throw new RingException(
            Status.OVERRUN,
            String.format(
                "ring \"%s\": message %d is no longer held and may be overwritten", ring.name(), id));
      }
    }
  }

  @Override
  public void close() {
    synchronized (lock()) {
      if (!closed) {
        closed = true;
        ring.release();
      }
    }
  }

  @Override
  public Ring ring() {
    return ring;
  }

  @Override
  public Object lock() {
    return this;
  }

  @Override
  public void check() {
    if (closed) {
      throw ring.closed("range");
    }
  }
}
