package io.shmring;

import java.nio.ByteBuffer;
import java.util.Objects;

/** Room for one message, to be filled and committed. Closing it without a commit aborts it. */
public final class Claim implements AutoCloseable, OpenClaim {
  private final Producer producer;
  private final long id;
  private final long address;
  private final long length;
  private final int shift;
  private boolean open = true;

  Claim(Producer producer, long id, long address, long length, int shift) {
    this.producer = producer;
    this.id = id;
    this.address = address;
    this.length = length;
    this.shift = shift;
  }

  /** The id that the message will have. */
  public long id() {
    return id;
  }

  /** Number of bytes that were claimed. */
  public long length() {
    return length;
  }

  /** Copies bytes to `offset`; returns the offset behind them. */
  public long put(long offset, byte[] from, int first, int count) {
    Objects.checkFromIndexSize(first, count, from.length);
    Objects.checkFromIndexSize(offset, count, length);
    synchronized (producer) {
      check();
      Native.copyFromArray(address + offset, from, first, count);
    }
    return offset + count;
  }

  /** Copies the remaining bytes of `from` to `offset`; returns the offset behind them. */
  public long put(long offset, ByteBuffer from) {
    int count = from.remaining();
    if (!from.isDirect()) {
      return putFromHeap(offset, from);
    }
    Objects.checkFromIndexSize(offset, count, length);
    synchronized (producer) {
      check();
      Native.copyFromBuffer(address + offset, from, from.position(), count);
    }
    from.position(from.limit());
    return offset + count;
  }

  private long putFromHeap(long offset, ByteBuffer from) {
    int count = from.remaining();
    if (from.hasArray()) {
      put(offset, from.array(), from.arrayOffset() + from.position(), count);
      from.position(from.limit());
      return offset + count;
    }
    Objects.checkFromIndexSize(offset, count, length);
    byte[] part = new byte[Math.min(count, Parts.MOST_AT_ONCE)];
    long at = offset;
    while (from.hasRemaining()) {
      int bytes = Math.min(from.remaining(), part.length);
      from.get(part, 0, bytes);
      at = put(at, part, 0, bytes);
    }
    return at;
  }

  /** Publishes the first `used` bytes as a message of this {@linkplain Kind kind}. */
  public void commit(long used, int kind) {
    synchronized (producer) {
      check();
      producer.publish(this, used, kind);
      open = false;
    }
  }

  /** Publishes the whole claim as a message of bytes. */
  public void commit() {
    commit(length, Kind.BYTES);
  }

  @Override
  public void close() {
    synchronized (producer) {
      if (open) {
        open = false;
        producer.abort();
      }
    }
  }

  @Override
  public void end() {
    open = false;
  }

  int shift() {
    return shift;
  }

  private void check() {
    if (!open) {
      throw new RingException(
          Status.CLOSED,
          String.format(
              "this claim of ring \"%s\" was committed or aborted already",
              producer.ring().name()));
    }
  }
}
