package io.shmring;

import java.util.Iterator;
import java.util.NoSuchElementException;

/** The messages between two sequences. */
final class Messages implements Iterator<Message> {
  private final Access access;
  private final long end;
  private final long[] words = new long[7]; // of the next message, see Native.read()
  private boolean read;
  private long position;

  Messages(Access access, long first, long end) {
    this.access = access;
    this.position = first;
    this.end = end;
  }

  /** Aborted runs lie between messages: only a look ahead tells. */
  @Override
  public boolean hasNext() {
    if (!read) {
      synchronized (access.lock()) {
        access.check();
        read = Native.read(access.ring().handle(), position, end, words) == 0;
      }
    }
    return read;
  }

  @Override
  public Message next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    read = false;
    position = words[0];
    return new Message(access, words);
  }
}
