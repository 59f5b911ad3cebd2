package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Objects;

/**
 * A message of a ring, for as long as a {@link Lease} or a {@link Range} gives access to it, or a
 * message that was read from a journal.
 */
public abstract sealed class Message permits RingMessage, KeptMessage {
  private final long id;
  private final long time;
  private final long length;
  private final int kind;
  private final int slots;

  Message(long id, long time, long length, int kind, int slots) {
    this.id = id;
    this.time = time;
    this.length = length;
    this.kind = kind;
    this.slots = slots;
  }

  /**
   * Makes a message that is no longer in a ring.
   *
   * @param data a direct buffer over its bytes and nothing else
   */
  public static Message of(long id, long time, int kind, int slots, ByteBuffer data) {
    return new KeptMessage(id, time, kind, slots, data);
  }

  public long id() {
    return id;
  }

  /** When it was published, in nanoseconds since 1970; 0 if the ring keeps no time. */
  public long time() {
    return time;
  }

  public long length() {
    return length;
  }

  /** One of {@link Kind}. */
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
    if (to.isReadOnly()) {
      throw new ReadOnlyBufferException();
    }
    copy(offset, count, to);
  }

  abstract void copy(long offset, int count, ByteBuffer to);

  /**
   * The message in place, for libraries that count references. Its memory stays mapped until the
   * result is closed; only the lease keeps producers from overwriting it.
   */
  public abstract MappedMessage mapped();
}
