package io.shmring;

import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.Objects;

/** A message of a ring, for as long as a {@link Lease} or a {@link Range} gives access to it. */
public final class Message {
  static final int WORDS = 7;

  private final Messages held;
  final long behind; // the sequence behind it
  private final long id;
  private final long time;
  private final long offset;
  private final long length;
  private final int kind;
  private final int slots;

  /** Reads the words that Native.read() or Native.take() wrote, which begin at `at`. */
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

  /** The time of publication, in nanoseconds since 1970; 0 if the ring keeps no time. */
  public long time() {
    return time;
  }

  public long length() {
    return length;
  }

  /** The number of the message's {@link Kind}. */
  public int kind() {
    return kind;
  }

  public int slots() {
    return slots;
  }

  public boolean isEnd() {
    return kind == Kind.END;
  }

  /** A copy of the message. */
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
      held.ring.slots().copy(this.offset + offset, count, to);
    }
  }

  /**
   * The message in place, for libraries that count references. Its memory stays mapped until the
   * result is closed; only the lease keeps producers from overwriting it.
   */
  public MappedMessage mapped() {
    synchronized (held.lock()) {
      held.check();
      return new MappedMessage(held.ring, held.ring.slots().address(offset), length);
    }
  }
}
