package io.shmring.sidecar;

import io.shmring.arrow.EncodedBatch;
import java.util.Optional;

/** Sends a task's batches to whoever answers them. One thread at a time may use it. */
public interface Client {
  /**
   * Sends a batch, or several as one. All answers that were returned before must be closed.
   *
   * @param rows number of rows that the function gets as one batch; 0: all
   * @param answered runs when the batch is no longer needed; the batch is closed then
   */
  void send(EncodedBatch batch, int rows, Runnable answered) throws InterruptedException;

  /** There are no more batches. */
  default void endInput() {}

  /** Number of batches that are still needed. */
  int underWay();

  /** Whether {@link #next} returns without a wait. */
  boolean isAnswered() throws InterruptedException;

  /**
   * Returns the next piece of an answer, or empty where the oldest batch is no longer needed, or all
   * is {@linkplain #isOver over}. Close each piece before the next call.
   */
  Optional<Answer> next() throws InterruptedException;

  /** Whether nothing more comes; asked after the last batch. */
  boolean isOver();

  /** Number of batches that are best sent as one. */
  default int batchesWanted() {
    return 1;
  }

  /** The functions, for the text of an error. */
  String function();

  /** Returns the counters since the last call of this method. */
  Counters takeCounters();
}
