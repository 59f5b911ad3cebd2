package io.shmring;

import java.nio.ByteBuffer;

/**
 * A message in place, readable while a {@link MessageHandler} runs. After the handler returns, and
 * in other threads, every use throws a {@link RingException} with {@link Status#CLOSED}. Numbers
 * have the machine's byte order. A view may reach only the first GiB of a message: take a larger
 * message as a {@link Lease}.
 */
public final class MessageView extends Slots.Place {
  private long id;
  private long time;
  private long length;
  private int kind;

  MessageView() {}

  void show(long id, long time, long offset, long length, int kind) {
    this.id = id;
    this.time = time;
    this.length = length;
    this.kind = kind;
    show(offset, length);
  }

  public long id() {
    check();
    return id;
  }

  /** Returns the time of publication, in nanoseconds since 1970; 0 if the ring keeps no time. */
  public long time() {
    check();
    return time;
  }

  public long length() {
    check();
    return length;
  }

  /** Returns the number of the message's {@link Kind}. */
  public int kind() {
    check();
    return kind;
  }

  public boolean isEnd() {
    return kind() == Kind.END;
  }

  /**
   * Returns the address of the whole message, for code that reads by address, without the checks of
   * bounds and thread that the methods below make. After the handler has returned, producers may
   * write there; after the last user of the ring was closed, a use of the address may crash the
   * process or read anything.
   */
  public long address() {
    return place();
  }

  public byte getByte(int offset) {
    return memory().get(at(offset, Byte.BYTES));
  }

  public short getShort(int offset) {
    return memory().getShort(atNumber(offset, Short.BYTES));
  }

  public int getInt(int offset) {
    return memory().getInt(atNumber(offset, Integer.BYTES));
  }

  public long getLong(int offset) {
    return memory().getLong(atNumber(offset, Long.BYTES));
  }

  public float getFloat(int offset) {
    return memory().getFloat(atNumber(offset, Float.BYTES));
  }

  public double getDouble(int offset) {
    return memory().getDouble(atNumber(offset, Double.BYTES));
  }

  /** Copies `count` bytes from `offset` on to `to`, beginning at index `first`. */
  public void copyTo(int offset, byte[] to, int first, int count) {
    copy(offset, count, ByteBuffer.wrap(to, first, count));
  }

  /** Copies the bytes from `offset` on until `to` is full. */
  public void copyTo(int offset, ByteBuffer to) {
    copy(offset, to.remaining(), to);
  }

  /** Returns a copy of the message's bytes. */
  public byte[] bytes() {
    byte[] bytes = new byte[Math.toIntExact(length())];
    copyTo(0, bytes, 0, bytes.length);
    return bytes;
  }
}
