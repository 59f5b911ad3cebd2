package io.shmring.sidecar;

import io.shmring.arrow.EncodedBatch;

/** Sends a task's batches to a Python worker of Spark's. */
public interface PythonClient extends Client, AutoCloseable {
  /**
   * Sends a batch as soon as the worker takes it. All answers that were returned before must be closed.
   *
   * @param side the side of a cogroup: 0 or 1
   * @param groups rows of each group in the batch; none if its rows are of no group
   * @param goesOn whether more rows of the last group follow
   * @param answered runs when the batch is no longer needed; the batch is closed then
   */
  void send(EncodedBatch batch, int side, int[] groups, boolean goesOn, Runnable answered);

  @Override
  default String function() {
    return "a Python worker";
  }

  @Override
  void close();
}
