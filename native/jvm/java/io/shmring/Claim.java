package io.shmring;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Objects;
import java.util.concurrent.locks.StampedLock;

/**
 * Room for one message, or for several messages that become readable by one store: all of them or
 * none, also if this process is killed. Closing a claim without a commit aborts it.
 */
public final class Claim implements AutoCloseable {
  private final Producer producer;
  private final long handle; // the producer's handle, which stays valid while the claim is open
  private final long id;
  // Three numbers for each message: its slots, its length (an unsigned int), and the number of
  // bytes between the beginning of its first slot and the message.
  private final int[] parts;
  private final long[] offsets; // bytes from the claim's first slot to each message
  private final long place; // bytes from the ring's first slot to the claim's first slot
  // Calls that fill the claim hold the lock shared; commit and abort hold it alone. Take the
  // producer's monitor before this lock.
  private final StampedLock lock = new StampedLock();
  private boolean open = true;

  /**
   * @param parts three numbers for each message: its slots, its length, and an unused number, which
   *     the constructor replaces by the bytes between the message's first slot and the message
   * @param aligns for each message, the number of its byte that must lie on a 64-byte boundary; -1
   *     for none
   */
  Claim(Producer producer, long handle, long id, int[] parts, long[] aligns) {
    Ring ring = producer.ring;
    long address = Native.slotAddress(ring.handle(), id);
    this.producer = producer;
    this.handle = handle;
    this.id = id;
    this.parts = parts;
    this.offsets = new long[aligns.length];
    this.place = ring.slots.offset(address);
    long slot = 0;
    for (int i = 0; i < aligns.length; i++) {
      int shift = aligns[i] < 0 ? 0 : (int) (-(address + slot + aligns[i]) & 63);
      parts[3 * i + 2] = shift;
      offsets[i] = slot + shift;
      slot += (long) parts[3 * i] * Ring.SLOT_BYTES;
    }
  }

  /** Returns the id that the first message will have. */
  public long id() {
    return id;
  }

  /** Returns the number of bytes that were claimed for the first message. */
  public long length() {
    return length(0);
  }

  /** Returns the number of bytes that were claimed for message `i`. */
  public long length(int i) {
    return Integer.toUnsignedLong(parts[3 * i + 1]);
  }

  /**
   * Copies the remaining bytes of `from` to the first message; returns the offset after the copied
   * bytes.
   */
  public long put(long offset, ByteBuffer from) {
    return put(0, offset, from);
  }

  /**
   * Copies the remaining bytes of `from` to message `i`; returns the offset after the copied bytes.
   */
  public long put(int i, long offset, ByteBuffer from) {
    int count = from.remaining();
    Objects.checkFromIndexSize(offset, count, length(i));
    fill(() -> producer.ring.slots.put(place + offsets[i] + offset, from));
    return offset + count;
  }

  /**
   * Fills message `i` with the bytes of a file from `position` on. Several threads may call this at
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

  /** Publishes all messages of the claim, with the kind BYTES. */
  public void commit() {
    commit(Kind.BYTES);
  }

  /** Publishes all messages of the claim, with the same {@linkplain Kind kind}. */
  public void commit(int kind) {
    commit(length(0), kind);
  }

  /** Publishes all messages of the claim. The first message is cut to its first `used` bytes. */
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

  /**
   * Marks the claim as ended without a call to the ring, because the producer is being closed,
   * which aborts the claim.
   */
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
