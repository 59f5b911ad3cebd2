package io.shmring.sidecar;

import io.shmring.arrow.EncodedBatch;

/** Sends a task's batches to one of Spark's Python workers. */
public interface PythonClient extends Client, AutoCloseable {
  /**
   * Sends a batch as soon as the worker has room for it. All answers that were returned before must
   * be closed.
   *
   * @param side the side of a cogroup: 0 or 1
   * @param groups number of rows of each group in the batch; empty if the rows are not grouped
   * @param goesOn whether more rows of the batch's last group follow in the next batch
   * @param answered an action that runs when the batch is no longer needed, after the batch was
   *     closed
   */
  void send(EncodedBatch batch, int side, int[] groups, boolean goesOn, Runnable answered);

  @Override
  default String function() {
    return "a Python worker";
  }

  @Override
  void close();
}
