package io.shmring;

import java.util.Iterator;
import java.util.NoSuchElementException;

/** The messages between two sequences. */
final class Messages implements Iterator<Message> {
  private final Holder holder;
  private final long end;
  private final long[] words = new long[7]; // of the next message, see Native.read()
  private boolean read;
  private long position;

  Messages(Holder holder, long first, long end) {
    this.holder = holder;
    this.position = first;
    this.end = end;
  }

  /** Aborted runs lie between messages: only a look ahead tells. */
  @Override
  public boolean hasNext() {
    if (!read) {
      synchronized (holder.lock()) {
        holder.check();
        read = Native.read(holder.ring().handle(), position, end, words) == 0;
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
    return new Message(holder, words);
  }
}
