package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Objects;

/**
 * A ring's slots as buffers. window(), copy() and put() check nothing: their callers have claimed
 * the bytes, or hold the message in them, and check that offsets lie inside. The slots are mapped
 * twice, one mapping after the other, so that every message is contiguous. A ByteBuffer has at most
 * 2 GiB. Therefore one buffer begins at each GiB of the slots, and covers the GiB after it too, so
 * that every message of up to 1 GiB lies in one buffer.
 */
final class Slots {
  private static final int SHIFT = 30;

  /**
   * Maximum bytes of one copy. A garbage collection waits until a copy ends, so larger copies are
   * made in several steps.
   */
  private static final int MOST_AT_ONCE = 1 << 20;

  private final ByteBuffer[] windows;
  private final long address;

  Slots(long address, long bytes) {
    this.address = address;
    windows = new ByteBuffer[(int) (((bytes - 1) >>> SHIFT) + 1)];
    for (int i = 0; i < windows.length; i++) {
      long from = (long) i << SHIFT;
      long length = Math.min(bytes - from, Integer.MAX_VALUE);
      windows[i] = Native.wrap(address + from, length).order(ByteOrder.nativeOrder());
    }
  }

  /** Returns the address at an offset from the first slot. */
  long address(long offset) {
    return address + offset;
  }

  /** Returns the offset of an address from the first slot. */
  long offset(long address) {
    return address - this.address;
  }

  /** Copies `count` bytes at an offset from the first slot; `to` may have more room. */
  void copy(long offset, int count, ByteBuffer to) {
    for (int copied = 0; copied < count; ) {
      ByteBuffer window = window(offset + copied);
      int from = place(offset + copied);
      int part = Math.min(Math.min(count - copied, MOST_AT_ONCE), window.capacity() - from);
      to.put(to.position(), window, from, part);
      to.position(to.position() + part);
      copied += part;
    }
  }

  /** Copies the remaining bytes of `from` to an offset from the first slot. */
  void put(long offset, ByteBuffer from) {
    while (from.hasRemaining()) {
      ByteBuffer window = window(offset);
      int part = Math.min(from.remaining(), window.capacity() - place(offset));
      part = Math.min(part, MOST_AT_ONCE);
      window.put(place(offset), from, from.position(), part);
      from.position(from.position() + part);
      offset += part;
    }
  }

  /** Returns the buffer that contains an offset from the first slot. */
  ByteBuffer window(long offset) {
    return windows[(int) (offset >>> SHIFT)];
  }

  /** Returns the position of the byte at `offset` in the buffer that window(offset) returns. */
  static int place(long offset) {
    return (int) offset & ((1 << SHIFT) - 1);
  }

  /**
   * Bytes in a ring that a callback may use while it runs, in its own thread. The same object shows
   * one message after the other.
   *
   * <p>The thread that runs the callback is the owner until the callback has returned. The field
   * `owner` needs no lock: a thread only asks whether the thread itself is the owner, and no other
   * thread makes a thread the owner, or ends its ownership.
   */
  abstract static class Place {
    private Thread owner;
    private Slots slots;
    private long offset; // bytes from the first slot
    private ByteBuffer memory;
    private int start;
    private int reach;

    final void open(Slots slots) {
      this.slots = slots;
      owner = Thread.currentThread();
    }

    final void end() {
      owner = null;
    }

    /** Returns whether this thread runs the callback. */
    final boolean isOpen() {
      return owner == Thread.currentThread();
    }

    final void show(long offset, long length) {
      this.offset = offset;
      memory = slots.window(offset);
      start = Slots.place(offset);
      reach = (int) Math.min(length, memory.capacity() - start);
    }

    final ByteBuffer memory() {
      return memory;
    }

    /** Returns the address of the first byte. */
    final long place() {
      check();
      return slots.address(offset);
    }

    /** Copies `count` bytes from `from` on; `to` may have more room. */
    final void copy(int from, int count, ByteBuffer to) {
      at(from, count);
      slots.copy(offset + from, count, to);
    }

    /**
     * Returns the position in memory() of `count` bytes from `offset` on. Throws if this thread
     * does not run the callback, or if the bytes lie outside the message.
     */
    final int at(int offset, int count) {
      check();
      return start + Objects.checkFromIndexSize(offset, count, reach);
    }

    /**
     * Returns the position in memory() of a number with `bytes` bytes. Does the same as at(), but
     * by a check that the compiler can move out of loops.
     */
    final int atNumber(int offset, int bytes) {
      check();
      return start + Objects.checkIndex(offset, reach - (bytes - 1));
    }

    final void check() {
      if (owner != Thread.currentThread()) {
        throw new RingException(
            Status.CLOSED,
            "these bytes of a ring were lent to a callback, which has returned or runs in another"
                + " thread; copy what is needed later");
      }
    }
  }
}
