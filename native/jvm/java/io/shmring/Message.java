package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.Objects;

/** A message of a ring, for as long as a {@link Lease} or a {@link Range} gives access to it. */
public final class Message {
  static final int WORDS = 7;
  static final int BYTES = WORDS * Long.BYTES;

  private final Access access;
  private final long behind;
  private final long id;
  private final long time;
  private final long offset;
  private final long length;
  private final int kind;
  private final int slots;

  /** Reads the words that Native.read() wrote. */
  Message(Access access, long[] words) {
    this.access = access;
    this.behind = words[0];
    this.id = words[1];
    this.time = words[2];
    this.offset = words[3];
    this.length = words[4];
    this.kind = (int) words[5];
    this.slots = (int) words[6];
  }

  /** Reads the same words, which begin at `at`. */
  Message(Access access, ByteBuffer words, int at) {
    this.access = access;
    this.behind = words.getLong(at);
    this.id = words.getLong(at + Long.BYTES);
    this.time = words.getLong(at + 2 * Long.BYTES);
    this.offset = words.getLong(at + 3 * Long.BYTES);
    this.length = words.getLong(at + 4 * Long.BYTES);
    this.kind = (int) words.getLong(at + 5 * Long.BYTES);
    this.slots = (int) words.getLong(at + 6 * Long.BYTES);
  }

  /** The sequence behind it. */
  long behind() {
    return behind;
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
    if (to.isReadOnly()) {
      throw new ReadOnlyBufferException();
    }
    synchronized (access.lock()) {
      access.check();
      access.ring().slots().copy(this.offset + offset, count, to);
    }
  }

  /**
   * The message in place, for libraries that count references. Its memory stays mapped until the
   * result is closed; only the lease keeps producers from overwriting it.
   */
  public MappedMessage mapped() {
    synchronized (access.lock()) {
      access.check();
      Ring ring = access.ring();
      long address = ring.slots().address(offset);
      ring.retain();
      return new MappedMessage(address, length, ring::release);
    }
  }
}
