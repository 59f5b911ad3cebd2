package io.shmring.sidecar;

import java.util.Optional;

/** Sends a task's batches to whoever answers them. One thread at a time may use it. */
public interface Client {
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
