package io.shmring.spark.request;

import java.util.Map;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.SparkOutOfMemoryError;
import org.apache.spark.memory.TaskMemoryManager;

/**
 * The vectors of a task's batches as Spark's memory manager sees them. They count with what Spark's
 * own operators take, which is off the heap only where the session gives those some memory there.
 */
final class VectorMemory extends MemoryConsumer implements AutoCloseable {
  private long wanted;
  private long got;

  VectorMemory(TaskMemoryManager memory) {
    super(memory, memory.getTungstenMemoryMode());
  }

  /** Bytes of what Spark's operators ask for at a time. */
  long pageBytes() {
    return taskMemoryManager.pageSizeBytes();
  }

  /**
   * Returns whether the task may have so many.
   *
   * @param bytes that the vectors have now
   * @param most that are asked for
   */
  boolean holds(long bytes, long most) {
    wanted = bytes - getUsed();
    got = Math.min(wanted, 0);
    if (got < 0) {
      freeMemory(-got);
    } else if (wanted > 0 && bytes <= most) {
      got = acquireMemory(wanted);
    }
    return got >= wanted;
  }

  /** The error about what was last asked for. */
  SparkOutOfMemoryError refused() {
    taskMemoryManager.showMemoryUsage();
    return new SparkOutOfMemoryError(
        "UNABLE_TO_ACQUIRE_MEMORY",
        Map.of("requestedBytes", Long.toString(wanted), "receivedBytes", Long.toString(got)));
  }

  /** What is under way cannot be written to a file instead. */
  @Override
  public long spill(long size, MemoryConsumer trigger) {
    return 0;
  }

  @Override
  public void close() {
    freeMemory(getUsed());
  }
}
