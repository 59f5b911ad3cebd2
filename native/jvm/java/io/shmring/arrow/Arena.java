package io.shmring.arrow;

import java.util.HashSet;
import java.util.Set;
import org.apache.arrow.memory.AllocationManager;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.arrow.memory.ReferenceManager;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * Memory for decoding one batch that is compressed or has dictionaries, and so may be much larger
 * than its message. The memory is limited. All of it is freed at once when the arena is closed,
 * because Arrow's classes forget some of their buffers when decoding fails midway, and these
 * buffers would leak.
 */
final class Arena implements AutoCloseable {
  /**
   * A batch may take FACTOR times the bytes of its message, plus {@link #SMALL} bytes. The limit
   * stops a small damaged message from asking for any amount of memory.
   */
  private static final long FACTOR = 1024;

  private static final long SMALL = 64L << 20;

  private final Set<Long> addresses = new HashSet<>();
  final BufferAllocator allocator;

  /**
   * @param message size of the message in bytes
   */
  Arena(long message) {
    this.allocator =
        new RootAllocator(
            RootAllocator.configBuilder()
                .maxAllocation(limit(message))
                // No rounding up, so that BatchCheck sees where the values of a buffer end.
                .roundingPolicy(size -> size)
                .allocationManagerFactory(new Pieces())
                .build());
  }

  /** Returns the maximum bytes of memory for a batch whose message has `message` bytes. */
  static long limit(long message) {
    return FACTOR * message + SMALL;
  }

  /** Returns an error that says what to do about a batch that does not fit. */
  static IllegalArgumentException full(long message, OutOfMemoryException error) {
    return new IllegalArgumentException(
        String.format(
            "its columns would take more than %d bytes of memory, and the message has %d; let the"
                + " producer write smaller batches, or without compression and dictionaries",
            limit(message), message),
        error);
  }

  @Override
  public void close() {
    addresses.forEach(MemoryUtil::freeMemory);
    addresses.clear();
  }

  private final class Pieces implements AllocationManager.Factory {
    @Override
    public AllocationManager create(BufferAllocator accounting, long size) {
      return new Piece(accounting, size);
    }

    @Override
    public ArrowBuf empty() {
      return new ArrowBuf(ReferenceManager.NO_OP, null, 0, 0);
    }
  }

  private final class Piece extends AllocationManager {
    private final long size;
    private final long address;

    Piece(BufferAllocator accounting, long size) {
      super(accounting);
      this.size = size;
      this.address = MemoryUtil.allocateMemory(size);
      addresses.add(address);
      // Zero the memory: a damaged LZ4 frame may fill less of it than the frame's size says, and a
      // reader must not see old bytes of this process.
      MemoryUtil.setMemory(address, size, (byte) 0);
    }

    @Override
    protected long memoryAddress() {
      return address;
    }

    @Override
    public long getSize() {
      return size;
    }

    @Override
    protected void release0() {
      if (addresses.remove(address)) {
        MemoryUtil.freeMemory(address);
      }
    }
  }
}
