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
  VectorMemory(TaskMemoryManager memory) {
    super(memory, memory.getTungstenMemoryMode());
  }

  /**
   * @param bytes that the vectors have now
   * @throws SparkOutOfMemoryError if the task may not have so many
   */
  void hold(long bytes) {
    long wanted = bytes - getUsed();
    if (wanted <= 0) {
      return;
    }
    long got = acquireMemory(wanted);
    if (got < wanted) {
      taskMemoryManager.showMemoryUsage();
      throw new SparkOutOfMemoryError(
          "UNABLE_TO_ACQUIRE_MEMORY",
          Map.of("requestedBytes", Long.toString(wanted), "receivedBytes", Long.toString(got)));
    }
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
