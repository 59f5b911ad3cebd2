package io.shmring;

import java.nio.ByteBuffer;

/**
 * A slot that a {@link MessageWriter} fills. After the writer returns, and in other threads, every
 * use throws a {@link RingException} with {@link Status#CLOSED}. Numbers have the machine's byte
 * order. The slot still holds the bytes of an earlier message.
 */
public final class MessageRoom extends Slots.Place {
  MessageRoom() {}

  /** Returns the largest number of bytes that a message in one slot may have. */
  public int capacity() {
    return Ring.SLOT_BYTES;
  }

  public void putByte(int offset, byte value) {
    memory().put(at(offset, Byte.BYTES), value);
  }

  public void putShort(int offset, short value) {
    memory().putShort(atNumber(offset, Short.BYTES), value);
  }

  public void putInt(int offset, int value) {
    memory().putInt(atNumber(offset, Integer.BYTES), value);
  }

  public void putLong(int offset, long value) {
    memory().putLong(atNumber(offset, Long.BYTES), value);
  }

  public void putFloat(int offset, float value) {
    memory().putFloat(atNumber(offset, Float.BYTES), value);
  }

  public void putDouble(int offset, double value) {
    memory().putDouble(atNumber(offset, Double.BYTES), value);
  }

  /** Copies `count` bytes from index `first` of `from` to `offset`. */
  public void put(int offset, byte[] from, int first, int count) {
    memory().put(at(offset, count), from, first, count);
  }

  /**
   * Copies the remaining bytes of `from` to `offset`; returns the offset after the copied bytes.
   */
  public int put(int offset, ByteBuffer from) {
    int count = from.remaining();
    memory().put(at(offset, count), from, from.position(), count);
    from.position(from.limit());
    return offset + count;
  }
}
