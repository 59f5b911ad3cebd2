package io.shmring.arrow;

import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OwnershipTransferResult;
import org.apache.arrow.memory.ReferenceManager;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * Memory for blocks. The pool keeps memory that no block uses any more and hands it out again,
 * because fresh pages cost more than the copy into them.
 */
final class BlockPool {
  private static final int LEAST = 64 * 1024;

  /**
   * If blocks use at least this many bytes, the pool asks for a garbage collection before it
   * allocates more, as the JDK does for its direct buffers.
   */
  private static final long MUCH = 256L << 20;

  private static final int ATTEMPTS = 5;

  private final LinkedBlockingDeque<ByteBuffer> free = new LinkedBlockingDeque<>();
  private final AtomicLong allocated = new AtomicLong();

  ByteBuffer take(int size) {
    ByteBuffer found = fitting(free.pollFirst(), size);
    if (found == null && allocated.get() >= MUCH) {
      found = fitting(freedByCollection(), size);
    }
    for (int attempt = 1; found == null; attempt++) {
      try {
        return allocate(size);
      } catch (OutOfMemoryError error) {
        if (attempt == ATTEMPTS) {
          throw error;
        }
        found = fitting(freedByCollection(), size);
      }
    }
    return found;
  }

  /** Returns buffers of these lengths in one block, each on a boundary of 64 bytes. */
  List<ArrowBuf> buffers(long[] lengths) {
    if (lengths.length == 0) {
      return List.of();
    }
    long size = Arrays.stream(lengths).map(BlockPool::aligned).sum();
    Block block = block(take(Math.toIntExact(size)), size);
    List<ArrowBuf> buffers = new ArrayList<>(lengths.length);
    long at = 0;
    for (long length : lengths) {
      buffers.add(block.buffer(at, length));
      at += aligned(length);
    }
    return buffers;
  }

  static long aligned(long length) {
    return (length + 63) & ~63L;
  }

  /**
   * Returns a block over memory of this pool. The pool gets the memory back when no buffer uses the
   * block.
   */
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

  /**
   * Returns `memory` if it has at least `size` bytes, or else the first free memory that is large
   * enough; null if there is none. Gives up every smaller memory that it meets on the way, because
   * batches of a ring mostly have one size, so that later batches will not fit there either.
   */
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

  /**
   * The memory of one batch: memory of the pool, or the mapped message itself. The block gives it
   * back when all vectors over it are closed; Spark closes vectors after it has made rows of them.
   * Columnar Python functions keep vectors longer than their batch, and do not say when they drop
   * them. For such vectors, the block gives the memory back when the garbage collector finds no
   * buffer over it. So the memory can neither leak nor be used after it was given back.
   */
  static final class Block implements ReferenceManager {
    private static final Cleaner CLEANER = Cleaner.create();

    private final long address;
    private final long size;
    private final AtomicInteger references = new AtomicInteger();
    private final Cleaner.Cleanable cleanable;

    /**
     * @param whenUnused an action that runs once, when no buffer is left; must not refer to the
     *     block, because the garbage collector would then never find the block unused
     */
    Block(long address, long size, Runnable whenUnused) {
      this.address = address;
      this.size = size;
      this.cleanable = CLEANER.register(this, whenUnused);
    }

    /** Returns a buffer that counts as a user of the block once a batch or vector retains it. */
    ArrowBuf buffer(long offset, long length) {
      ArrowBuf buffer = new ArrowBuf(this, null, length, address + offset);
      buffer.writerIndex(length);
      return buffer;
    }

    @Override
    public ArrowBuf deriveBuffer(ArrowBuf source, long index, long length) {
      return new ArrowBuf(this, null, length, source.memoryAddress() + index);
    }

    @Override
    public ArrowBuf retain(ArrowBuf source, BufferAllocator target) {
      retain();
      return source;
    }

    @Override
    public OwnershipTransferResult transferOwnership(ArrowBuf source, BufferAllocator target) {
      retain();
      return NO_OP.transferOwnership(source, target);
    }

    @Override
    public int getRefCount() {
      return references.get();
    }

    @Override
    public boolean release() {
      return release(1);
    }

    @Override
    public boolean release(int decrement) {
      boolean unused = references.addAndGet(-decrement) == 0;
      if (unused) {
        cleanable.clean();
      }
      return unused;
    }

    @Override
    public void retain() {
      retain(1);
    }

    @Override
    public void retain(int increment) {
      references.addAndGet(increment);
    }

    @Override
    public BufferAllocator getAllocator() {
      return null;
    }

    @Override
    public long getSize() {
      return size;
    }

    @Override
    public long getAccountedSize() {
      return 0; // no allocator accounts for the memory
    }
  }
}
