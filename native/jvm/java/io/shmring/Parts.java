package io.shmring;

import java.nio.ByteBuffer;
import java.util.Objects;

/** Copies in parts: a garbage collection waits for the end of each. */
final class Parts {
  static final int MOST_AT_ONCE = 1 << 20;

  private Parts() {}

  /** Copies `count` bytes from `at` on to the position of `to`, which may have more room. */
  static void copy(ByteBuffer from, int at, int count, ByteBuffer to) {
    for (int copied = 0; copied < count; ) {
      int part = Math.min(count - copied, MOST_AT_ONCE);
      to.put(to.position(), from, at + copied, part);
      to.position(to.position() + part);
      copied += part;
    }
  }

  /** Copies `count` bytes from `at` on to `to`, from `first` on. */
  static void copy(ByteBuffer from, int at, int count, byte[] to, int first) {
    Objects.checkFromIndexSize(first, count, to.length);
    for (int copied = 0; copied < count; ) {
      int part = Math.min(count - copied, MOST_AT_ONCE);
      from.get(at + copied, to, first + copied, part);
      copied += part;
    }
  }
}
