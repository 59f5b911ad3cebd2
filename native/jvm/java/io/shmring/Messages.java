package io.shmring;

import java.nio.LongBuffer;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;

/** The messages between two sequences, readable while this object is open. */
abstract class Messages implements AutoCloseable, Iterable<Message> {
  final Ring ring;
  final long first;
  final long end;

  Messages(Ring ring, long first, long end) {
    this.ring = ring;
    this.first = first;
    this.end = end;
  }

  /** Returns the object to lock while messages are read; call check() after locking. */
  abstract Object lock();

  /**
   * @throws RingException if this object was closed
   */
  abstract void check();

  /** Returns the first message, if it was read when the messages were taken. */
  Optional<Message> head() {
    return Optional.empty();
  }

  @Override
  public abstract void close();

  @Override
  public Iterator<Message> iterator() {
    return new Walk();
  }

  private final class Walk implements Iterator<Message> {
    private Optional<Message> next = Optional.empty();
    private long position = first;

    /**
     * Reads the next message. Only this read shows whether there is a next message, because the
     * remaining slots may all belong to aborted claims.
     */
    @Override
    public boolean hasNext() {
      if (next.isEmpty()) {
        synchronized (lock()) {
          check();
          next = read();
        }
      }
      return next.isPresent();
    }

    private Optional<Message> read() {
      if (head().isPresent() && position < head().get().behind) {
        return head();
      }
      long[] words = new long[Message.WORDS];
      return Native.read(ring.handle(), position, end, words) == 0
          ? Optional.of(new Message(Messages.this, LongBuffer.wrap(words), 0))
          : Optional.empty();
    }

    @Override
    public Message next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      Message message = next.get();
      next = Optional.empty();
      position = message.behind;
      return message;
    }
  }
}
