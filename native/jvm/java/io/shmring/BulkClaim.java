package io.shmring;

import java.nio.file.Path;
import java.util.Objects;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * Room for several messages, which become readable by one store: all of them or none, also if this
 * process is killed. Closing it without a commit aborts it.
 */
public final class BulkClaim implements AutoCloseable, Producer.OpenClaim {
  private final Producer producer;
  private final long handle;
  private final long id;
  private final int[] slots;
  private final int[] lengths;
  private final int[] shifts;
  private final long[] offsets;
  // Filling shares it, ending the claim holds it alone; the producer's lock is taken before it.
  private final ReadWriteLock lock = new ReentrantReadWriteLock();
  private boolean open = true;

  BulkClaim(
      Producer producer,
      long handle,
      long id,
      long address,
      int[] slots,
      int[] lengths,
      int[] aligns) {
    this.producer = producer;
    this.handle = handle;
    this.id = id;
    this.slots = slots;
    this.lengths = lengths.clone();
    this.shifts = new int[slots.length];
    this.offsets = new long[slots.length];
    long slot = 0;
    for (int i = 0; i < slots.length; i++) {
      shifts[i] = aligns[i] < 0 ? 0 : (int) (-(address + slot + aligns[i]) & 63);
      offsets[i] = slot + shifts[i];
      slot += (long) slots[i] * Ring.SLOT_BYTES;
    }
  }

  /** The id that the first message will have. */
  public long id() {
    return id;
  }

  /**
   * Fills message `i` with the bytes of a file from `position` on. Several threads may do so at
   * the same time.
   */
  public void fill(int i, Path file, long position) {
    Objects.checkIndex(i, lengths.length);
    lock.readLock().lock();
    try {
      check();
      Native.fill(handle, offsets[i], Ring.utf8(file.toString()), position, lengths[i]);
    } finally {
      lock.readLock().unlock();
    }
  }

  /** Publishes all messages, of one {@linkplain Kind kind}. */
  public void commit(int kind) {
    synchronized (producer) {
      lock.writeLock().lock();
      try {
        check();
        producer.publishAll(slots, lengths, shifts, kind);
        open = false;
      } finally {
        lock.writeLock().unlock();
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

  @Override
  public void end() {
    lock.writeLock().lock();
    open = false;
    lock.writeLock().unlock();
  }

  private void check() {
    if (!open) {
      throw producer.ring().closed("claim");
    }
  }
}
