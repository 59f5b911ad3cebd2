package io.shmring;

import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.Objects;

/** A message of a ring, readable while a {@link Lease} or a {@link Range} gives access to it. */
public final class Message {
  static final int WORDS = 7;

  private final Messages held;
  final long behind; // the sequence after the message
  private final long id;
  private final long time;
  private final long offset;
  private final long length;
  private final int kind;
  private final int slots;

  /**
   * Makes a message from the words that Native.read() or Native.take() wrote, beginning with word
   * `at`.
   */
  Message(Messages held, LongBuffer words, int at) {
    this.held = held;
    this.behind = words.get(at);
    this.id = words.get(at + 1);
    this.time = words.get(at + 2);
    this.offset = words.get(at + 3);
    this.length = words.get(at + 4);
    this.kind = (int) words.get(at + 5);
    this.slots = (int) words.get(at + 6);
  }

  public long id() {
    return id;
  }

  /** Returns the time of publication, in nanoseconds since 1970; 0 if the ring keeps no time. */
  public long time() {
    return time;
  }

  public long length() {
    return length;
  }

  /** Returns the number of the message's {@link Kind}. */
  public int kind() {
    return kind;
  }

  public int slots() {
    return slots;
  }

  public boolean isEnd() {
    return kind == Kind.END;
  }

  /** Returns a copy of the message's bytes. */
  public byte[] bytes() {
    byte[] bytes = new byte[Math.toIntExact(length)];
    copyTo(0, ByteBuffer.wrap(bytes));
    return bytes;
  }

  /** Copies the bytes from `offset` on until `to` is full. */
  public void copyTo(long offset, ByteBuffer to) {
    int count = to.remaining();
    Objects.checkFromIndexSize(offset, count, length);
    synchronized (held.lock()) {
      held.check();
      held.ring.slots.copy(this.offset + offset, count, to);
    }
  }

  /**
   * Returns the message in place, for a library like Arrow that counts the references to a buffer,
   * and frees the buffer after the last one. The memory stays mapped until the result is closed;
   * only the lease keeps producers from overwriting the message.
   */
  public MappedMessage mapped() {
    synchronized (held.lock()) {
      held.check();
      return new MappedMessage(held.ring, held.ring.slots.address(offset), length);
    }
  }
}
