package io.shmring.spark.request;

import io.shmring.sidecar.SidecarClient;
import io.shmring.spark.columns.RootWriter;
import java.io.Serializable;
import java.util.Iterator;
import java.util.function.Supplier;

/** What a task's child gives, cut into batches. */
public interface Input {
  /** Makes it of what a child's partition holds. */
  interface Kind<T> extends Serializable {
    Input of(Iterator<T> child, AnswerHandler handler);
  }

  boolean hasNext();

  /**
   * For an input that writes rows already when it is asked whether it has some.
   *
   * @param next gives an empty writer whenever one is needed
   * @param batchRows of a batch that is whole
   * @param mostBytes of the first one, unless its first row has more
   */
  default void writeTo(Supplier<RootWriter> next, int batchRows, long mostBytes) {}

  /** The batch is made of what was written: what follows goes to another writer. */
  default void cut(RootWriter writer) {}

  /** Says who sends the batches, before the first one is filled. */
  default void begin(SidecarClient client) {}

  /**
   * Writes the next rows behind what was written; {@link #hasNext} must say that there are some.
   *
   * @param mostBytes of these with what is kept of them, unless the first one that is written has more
   * @return how many there were
   */
  int fill(RootWriter writer, int mostRows, long mostBytes);

  /** Bytes of the rows that the last call of that wrote. */
  long bytes();

  /** Whether what several calls write may be sent as one request. */
  default boolean isJoined() {
    return true;
  }
}
