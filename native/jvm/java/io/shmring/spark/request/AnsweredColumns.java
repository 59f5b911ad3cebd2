package io.shmring.spark.request;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The columns of a task's answers, each batch until the next one is asked for. */
final class AnsweredColumns implements Iterator<ColumnarBatch> {
  private final AnsweredBatches answers;
  private Optional<ColumnarBatch> pending = Optional.empty();

  AnsweredColumns(AnsweredBatches answers) {
    this.answers = answers;
  }

  @Override
  public boolean hasNext() {
    if (pending.isEmpty()) {
      synchronized (answers) {
        pending = answers.next();
        pending.ifPresent(
            batch -> {
              answers.count(batch.numRows());
              answers.readHere();
            });
      }
    }
    return pending.isPresent();
  }

  @Override
  public ColumnarBatch next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    ColumnarBatch batch = pending.get();
    pending = Optional.empty();
    return batch;
  }
}
