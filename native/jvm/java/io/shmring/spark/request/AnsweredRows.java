package io.shmring.spark.request;

import java.util.Collections;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of a task's answers, each until the next one. */
final class AnsweredRows implements Iterator<InternalRow> {
  private final AnsweredBatches answers;
  private Iterator<UnsafeRow> rows = Collections.emptyIterator();
  private InternalRow pending; // written, and not given out yet

  AnsweredRows(AnsweredBatches answers) {
    this.answers = answers;
  }

  /** A row is written while nobody can close the answers. */
  @Override
  public boolean hasNext() {
    if (pending == null) {
      synchronized (answers) {
        if (answers.isClosed()) {
          return false;
        }
        while (!rows.hasNext()) {
          Optional<ColumnarBatch> piece = answers.next();
          if (piece.isEmpty()) {
            return false;
          }
          rows = answers.rows(piece.get());
        }
        pending = rows.next();
        answers.count(1);
      }
    }
    return true;
  }

  @Override
  public InternalRow next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    InternalRow row = pending;
    pending = null;
    return row;
  }
}
