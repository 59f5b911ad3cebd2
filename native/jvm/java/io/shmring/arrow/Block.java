package io.shmring.arrow;

import java.lang.ref.Cleaner;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OwnershipTransferResult;
import org.apache.arrow.memory.ReferenceManager;

/**
 * The memory of one batch. It lives until the garbage collector finds no Arrow buffer over it, not
 * until somebody calls close(): Spark keeps vectors longer than the batch they came in, and nobody
 * tells when it drops them. So it can neither leak nor be used after it is gone.
 */
final class Block implements ReferenceManager {
  private static final Cleaner CLEANER = Cleaner.create();

  private final long address;
  private final long size;

  /**
   * @param whenUnused runs once when no buffer is left; must not refer to this block
   */
  Block(long address, long size, Runnable whenUnused) {
    this.address = address;
    this.size = size;
    CLEANER.register(this, whenUnused);
  }

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
    return source;
  }

  @Override
  public OwnershipTransferResult transferOwnership(ArrowBuf source, BufferAllocator target) {
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
    return 1;
  }

  @Override
  public boolean release() {
    return false;
  }

  @Override
  public boolean release(int decrement) {
    return false;
  }

  @Override
  public void retain() {}

  @Override
  public void retain(int increment) {}

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
