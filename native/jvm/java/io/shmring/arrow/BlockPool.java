package io.shmring.arrow;

import java.nio.ByteBuffer;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * Memory for blocks, used again after the garbage collector has given it back: fresh pages cost more
 * than the copy into them.
 */
final class BlockPool {
  private static final int LEAST = 64 * 1024;

  /** Beyond this limit the pool asks for a collection, as the JDK does for its direct buffers. */
  private static final long MUCH = 256L << 20;

  private static final int ATTEMPTS = 5;

  private final LinkedBlockingDeque<ByteBuffer> free = new LinkedBlockingDeque<>();
  private final AtomicLong allocated = new AtomicLong();

  ByteBuffer take(int size) {
    ByteBuffer found = fitting(free.pollFirst(), size);
    for (int attempt = 1; found == null && attempt < ATTEMPTS; attempt++) {
      if (allocated.get() < MUCH || attempt > 1) {
        try {
          return allocate(size);
        } catch (OutOfMemoryError error) {
          if (attempt == ATTEMPTS - 1) {
            throw error;
          }
        }
      }
      found = fitting(freedByCollection(), size);
    }
    return found == null ? allocate(size) : found;
  }

  /** A block over memory of this pool, which comes back when nobody uses the block any more. */
  Block block(ByteBuffer memory, long size) {
    return new Block(
        MemoryUtil.getByteBufferAddress(memory), size, () -> free.addFirst(memory));
  }

  private ByteBuffer allocate(int size) {
    int rounded = size <= LEAST ? LEAST : Integer.highestOneBit(size - 1) << 1;
    ByteBuffer memory = ByteBuffer.allocateDirect(rounded > 0 ? rounded : size);
    allocated.addAndGet(memory.capacity());
    return memory;
  }

  /** A block that is too small is dropped: batches of a ring mostly have one size. */
  private ByteBuffer fitting(ByteBuffer memory, int size) {
    if (memory == null || memory.capacity() >= size) {
      return memory;
    }
    allocated.addAndGet(-memory.capacity());
    return fitting(free.pollFirst(), size);
  }

  private ByteBuffer freedByCollection() {
    System.gc();
    try {
      return free.pollFirst(200, TimeUnit.MILLISECONDS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return null;
    }
  }
}
