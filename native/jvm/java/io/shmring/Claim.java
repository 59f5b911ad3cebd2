package io.shmring;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Objects;
import java.util.concurrent.locks.StampedLock;

/**
 * Room for one message, or for several that become readable by one store: all of them or none, also
 * if this process is killed. Closing it without a commit aborts it.
 */
public final class Claim implements AutoCloseable {
  private final Producer producer;
  private final long handle; // the producer's, which stays for as long as this is open
  private final long id;
  private final int[] parts; // each message's slots, length (unsigned), and shift within its slots
  private final long[] offsets; // of the messages, from the claim's first slot on
  private final long place; // of that slot, from the ring's first slot on
  // Filling shares it, ending the claim holds it alone; the producer's lock is taken before it.
  private final StampedLock lock = new StampedLock();
  private boolean open = true;

  /**
   * @param parts with shifts of 0 still
   * @param aligns for each message the byte that lies on a 64-byte boundary, or -1
   */
  Claim(Producer producer, long handle, long id, int[] parts, long[] aligns) {
    Ring ring = producer.ring;
    long address = Native.slotAddress(ring.handle(), id);
    this.producer = producer;
    this.handle = handle;
    this.id = id;
    this.parts = parts;
    this.offsets = new long[aligns.length];
    this.place = ring.slots().offset(address);
    long slot = 0;
    for (int i = 0; i < aligns.length; i++) {
      int shift = aligns[i] < 0 ? 0 : (int) (-(address + slot + aligns[i]) & 63);
      parts[3 * i + 2] = shift;
      offsets[i] = slot + shift;
      slot += (long) parts[3 * i] * Ring.SLOT_BYTES;
    }
  }

  /** The id that the first message will have. */
  public long id() {
    return id;
  }

  /** Number of bytes that were claimed for the first message. */
  public long length() {
    return length(0);
  }

  /** Number of bytes that were claimed for message `i`. */
  public long length(int i) {
    return Integer.toUnsignedLong(parts[3 * i + 1]);
  }

  /** Copies bytes to the first message; returns the offset behind them. */
  public long put(long offset, byte[] from, int first, int count) {
    return put(offset, ByteBuffer.wrap(from, first, count));
  }

  /** Copies the remaining bytes of `from` to the first message; returns the offset behind them. */
  public long put(long offset, ByteBuffer from) {
    return put(0, offset, from);
  }

  /** Copies the remaining bytes of `from` to message `i`; returns the offset behind them. */
  public long put(int i, long offset, ByteBuffer from) {
    int count = from.remaining();
    Objects.checkFromIndexSize(offset, count, length(i));
    fill(() -> producer.ring.slots().put(place + offsets[i] + offset, from));
    return offset + count;
  }

  /**
   * Fills message `i` with the bytes of a file from `position` on. Several threads may do so at
   * the same time.
   */
  public void fill(int i, Path file, long position) {
    byte[] path = Ring.utf8(file.toString());
    fill(() -> Native.fill(handle, offsets[i], path, position, length(i)));
  }

  private void fill(Runnable copy) {
    long stamp = lock.readLock();
    try {
      check();
      copy.run();
    } finally {
      lock.unlockRead(stamp);
    }
  }

  /** Publishes the whole claim, as messages of bytes. */
  public void commit() {
    commit(Kind.BYTES);
  }

  /** Publishes all messages, of one {@linkplain Kind kind}. */
  public void commit(int kind) {
    commit(length(0), kind);
  }

  /** Publishes all messages, of the first one no more than the first `used` bytes. */
  public void commit(long used, int kind) {
    Objects.checkFromToIndex(0, used, length(0));
    Objects.checkFromToIndex(0, kind, 255);
    synchronized (producer) {
      long stamp = lock.writeLock();
      try {
        check();
        parts[1] = (int) used;
        producer.publish(parts, kind);
        open = false;
      } finally {
        lock.unlockWrite(stamp);
      }
    }
  }

  @Override
  public void close() {
    synchronized (producer) {
      if (open) {
        end();
        producer.abort();
      }
    }
  }

  /** Ends the claim without a word to the ring: the producer is being closed, which aborts it. */
  void end() {
    long stamp = lock.writeLock();
    open = false;
    lock.unlockWrite(stamp);
  }

  private void check() {
    if (!open) {
      throw new RingException(
          Status.CLOSED, "this claim of ring \"%s\" was committed or aborted already",
          producer.ring.name());
    }
  }
}
