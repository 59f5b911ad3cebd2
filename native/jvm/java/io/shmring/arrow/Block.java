package io.shmring.arrow;

import java.lang.ref.Cleaner;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OwnershipTransferResult;
import org.apache.arrow.memory.ReferenceManager;

/**
 * The memory of one batch. It is freed when all vectors over it are closed, as Spark does after it
 * has made rows of them, or when the garbage collector finds no buffer over it: columnar Python
 * functions keep vectors longer than their batch, and do not say when they drop them. So the memory
 * can neither leak nor be used after it was freed.
 */
final class Block implements ReferenceManager {
  private static final Cleaner CLEANER = Cleaner.create();

  private final long address;
  private final long size;
  private final AtomicInteger references = new AtomicInteger();
  private final Cleaner.Cleanable cleanable;

  /**
   * @param whenUnused runs once when no buffer is left; must not refer to this block
   */
  Block(long address, long size, Runnable whenUnused) {
    this.address = address;
    this.size = size;
    this.cleanable = CLEANER.register(this, whenUnused);
  }

  /** A buffer without references yet. */
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
    return new OwnershipTransferResult() {
      @Override
      public boolean getAllocationFit() {
        return true;
      }

      @Override
      public ArrowBuf getTransferredBuffer() {
        return source;
      }
    };
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
    return 0; // of no allocator
  }
}
