package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * A ring's slots as buffers, for who has a message or a claim there and checks each place. They lie in
 * memory twice, one behind the other, so that no message is in two parts. A buffer has 2 GiB at most:
 * one begins at each GiB.
 */
final class Slots {
  private static final int SHIFT = 30;
  private static final int MOST_AT_ONCE = 1 << 20; // a garbage collection waits for the end of a copy

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

  /** Where what begins so many bytes behind the first slot lies. */
  long address(long offset) {
    return address + offset;
  }

  /** Copies what begins so many bytes behind the first slot until `to` is full. */
  void copy(long offset, ByteBuffer to) {
    while (to.hasRemaining()) {
      ByteBuffer window = window(offset);
      int there = window.capacity() - place(offset);
      int count = Math.min(to.remaining(), Math.min(there, MOST_AT_ONCE));
      to.put(to.position(), window, place(offset), count);
      to.position(to.position() + count);
      offset += count;
    }
  }

  /** The buffer that what begins so many bytes behind the first slot is read in. */
  ByteBuffer window(long offset) {
    return windows[(int) (offset >>> SHIFT)];
  }

  /** Where in that buffer it begins. */
  static int place(long offset) {
    return (int) offset & ((1 << SHIFT) - 1);
  }
}
