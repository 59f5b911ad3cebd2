package io.shmring;

import java.nio.ByteBuffer;

/** A message in a ring. */
final class RingMessage extends Message {
  static final int WORDS = 7;
  static final int BYTES = WORDS * Long.BYTES;

  private final Access access;
  private final long behind;
  private final long offset;

  /** Reads the words that Native.read() wrote. */
  RingMessage(Access access, long[] words) {
    super(words[1], words[2], words[4], (int) words[5], (int) words[6]);
    this.access = access;
    this.behind = words[0];
    this.offset = words[3];
  }

  /** Reads the same words, which begin at `at`. */
  RingMessage(Access access, ByteBuffer words, int at) {
    super(
        words.getLong(at + Long.BYTES),
        words.getLong(at + 2 * Long.BYTES),
        words.getLong(at + 4 * Long.BYTES),
        (int) words.getLong(at + 5 * Long.BYTES),
        (int) words.getLong(at + 6 * Long.BYTES));
    this.access = access;
    this.behind = words.getLong(at);
    this.offset = words.getLong(at + 3 * Long.BYTES);
  }

  /** The sequence behind it. */
  long behind() {
    return behind;
  }

  @Override
  void copy(long offset, int count, ByteBuffer to) {
    synchronized (access.lock()) {
      access.check();
      access.ring().slots().copy(this.offset + offset, count, to);
    }
  }

  @Override
  public MappedMessage mapped() {
    synchronized (access.lock()) {
      access.check();
      Ring ring = access.ring();
      long address = ring.slots().address(offset);
      ring.retain();
      return new MappedMessage(address, length(), ring::release);
    }
  }
}
