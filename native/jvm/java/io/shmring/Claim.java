package io.shmring;

import java.nio.ByteBuffer;
import java.util.Objects;

/** Room for one message, to be filled and committed. Closing it without a commit aborts it. */
public final class Claim implements AutoCloseable, Producer.OpenClaim {
  private final Producer producer;
  private final long id;
  private final long place; // from the first slot on
  private final long length;
  private final int shift;
  private boolean open = true;

  Claim(Producer producer, long id, long place, long length, int shift) {
    this.producer = producer;
    this.id = id;
    this.place = place;
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
    return put(offset, ByteBuffer.wrap(from, first, count));
  }

  /** Copies the remaining bytes of `from` to `offset`; returns the offset behind them. */
  public long put(long offset, ByteBuffer from) {
    int count = from.remaining();
    Objects.checkFromIndexSize(offset, count, length);
    synchronized (producer) {
      check();
      producer.ring().slots().put(place + offset, from);
    }
    return offset + count;
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
