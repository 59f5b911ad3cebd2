package io.shmring;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;

/** The messages between two sequences. */
final class Messages implements Iterator<Message> {
  private final Access access;
  private final long end;
  private final Optional<Message> head;
  private Optional<Message> next = Optional.empty();
  private long position;

  /**
   * @param head the first message, if it has been read
   */
  Messages(Access access, Optional<Message> head, long first, long end) {
    this.access = access;
    this.head = head;
    this.position = first;
    this.end = end;
  }

  /** Reads ahead, because aborted runs may lie between messages. */
  @Override
  public boolean hasNext() {
    if (next.isEmpty()) {
      synchronized (access.lock()) {
        access.check();
        next = read();
      }
    }
    return next.isPresent();
  }

  private Optional<Message> read() {
    if (head.isPresent() && position < head.get().behind()) {
      return head;
    }
    long[] words = new long[Message.WORDS];
    return Native.read(access.ring().handle(), position, end, words) == 0
        ? Optional.of(new Message(access, words))
        : Optional.empty();
  }

  @Override
  public Message next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    Message message = next.get();
    next = Optional.empty();
    position = message.behind();
    return message;
  }
}
