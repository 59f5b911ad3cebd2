package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A ring's slots as buffers, for code that has a message or a claim there and checks each place. The
 * slots are mapped twice, one mapping behind the other, so that no message is in two parts. A buffer
 * has 2 GiB at most: one begins at each GiB.
 */
final class Slots {
  private static final int SHIFT = 30;

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

  /** The address at an offset from the first slot. */
  long address(long offset) {
    return address + offset;
  }

  /** The offset from the first slot of an address. */
  long offset(long address) {
    return address - this.address;
  }

  /** Copies `count` bytes at an offset from the first slot; `to` may have more room. */
  void copy(long offset, int count, ByteBuffer to) {
    int copied = 0;
    while (copied < count) {
      ByteBuffer window = window(offset + copied);
      int from = place(offset + copied);
      int part = Math.min(count - copied, window.capacity() - from);
      Parts.copy(window, from, part, to);
      copied += part;
    }
  }

  /** Copies the remaining bytes of `from` to an offset from the first slot. */
  void put(long offset, ByteBuffer from) {
    while (from.hasRemaining()) {
      ByteBuffer window = window(offset);
      int part = Math.min(from.remaining(), window.capacity() - place(offset));
      part = Math.min(part, Parts.MOST_AT_ONCE);
      window.put(place(offset), from, from.position(), part);
      from.position(from.position() + part);
      offset += part;
    }
  }

  /** The buffer at an offset from the first slot. */
  ByteBuffer window(long offset) {
    return windows[(int) (offset >>> SHIFT)];
  }

  /** The place of the offset in this buffer. */
  static int place(long offset) {
    return (int) offset & ((1 << SHIFT) - 1);
  }
}
