package io.shmring.spark.request;

import java.util.Map;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.SparkOutOfMemoryError;
import org.apache.spark.memory.TaskMemoryManager;

/**
 * Counts the vectors of a task's batches with Spark's memory manager, as Spark's own operators do
 * with their memory. The vectors count as off-heap memory only if the session gives operators
 * off-heap memory.
 */
final class VectorMemory extends MemoryConsumer implements AutoCloseable {
  private long wanted;
  private long got;

  VectorMemory(TaskMemoryManager memory) {
    super(memory, memory.getTungstenMemoryMode());
  }

  /** Returns the size of a page: Spark's operators ask for memory by the page. */
  long pageBytes() {
    return taskMemoryManager.pageSizeBytes();
  }

  /**
   * Gives back memory that the vectors no longer use, or asks Spark for the memory that they lack.
   * Returns whether the task now has memory for all its vectors.
   *
   * @param bytes bytes of the vectors now
   * @param most maximum bytes of the vectors; Spark is not asked for more
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

  /** Returns the error for the bytes that {@link #holds} asked for last and did not get. */
  SparkOutOfMemoryError refused() {
    taskMemoryManager.showMemoryUsage();
    return new SparkOutOfMemoryError(
        "UNABLE_TO_ACQUIRE_MEMORY",
        Map.of("requestedBytes", Long.toString(wanted), "receivedBytes", Long.toString(got)));
  }

  /** Frees nothing: vectors under way cannot be written to a file. */
  @Override
  public long spill(long size, MemoryConsumer trigger) {
    return 0;
  }

  @Override
  public void close() {
    freeMemory(getUsed());
  }
}
