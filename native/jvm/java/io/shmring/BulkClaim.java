package io.shmring;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;

/**
 * Room for several messages, which become readable by one store: all of them or none, also if this
 * process is killed. Closed without a commit, it is aborted.
 */
public final class BulkClaim implements AutoCloseable, OpenClaim {
  private final Producer producer;
  private final long id;
  private final int[] slots;
  private final int[] lengths;
  private final int[] shifts;
  private final long[] addresses;
  private boolean open = true;

  BulkClaim(
      Producer producer, long id, long address, int[] slots, int[] lengths, int[] aligns) {
    this.producer = producer;
    this.id = id;
    this.slots = slots;
    this.lengths = lengths.clone();
    this.shifts = new int[slots.length];
    this.addresses = new long[slots.length];
    long slot = address;
    for (int i = 0; i < slots.length; i++) {
      shifts[i] = aligns[i] < 0 ? 0 : (int) (-(slot + aligns[i]) & 63);
      addresses[i] = slot + shifts[i];
      slot += (long) slots[i] * Ring.SLOT_BYTES;
    }
  }

  /** The first message's id to be. */
  public long id() {
    return id;
  }

  /** Fills message `i` with what stands in a file from `position` on. */
  public void fill(int i, FileChannel file, long position) throws IOException {
    synchronized (producer) {
      check();
      ByteBuffer room = Native.wrap(addresses[i], lengths[i]);
      while (room.hasRemaining()) {
        if (file.read(room, position + room.position()) < 0) {
          throw new EOFException("the file ends before byte " + (position + lengths[i]));
        }
      }
    }
  }

  /** Publishes all messages, of one {@linkplain Kind kind}. */
  public void commit(int kind) {
    synchronized (producer) {
      check();
      producer.publishAll(slots, lengths, shifts, kind);
      open = false;
    }
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

  private void check() {
    if (!open) {
      throw producer.ring().closed("claim");
    }
  }
}
