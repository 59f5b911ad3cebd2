package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import io.shmring.spark.request.Signature.OfRows;
import java.io.Serializable;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Writes into batches the rows that a task gets from the children of its plan node. */
public abstract class Input {
  /** Makes an input over one partition of each child of the plan node. */
  public interface Maker<T> extends Serializable {
    Input of(List<Iterator<T>> children, AnswerHandler handler);
  }

  /**
   * Returns an input over the iterator of the node's child. If the child is a stage of generated
   * code that ends in RowsToArrowExec, that code writes the rows into batches itself; otherwise the
   * iterator gives rows.
   */
  public static Input ofStage(List<Iterator<InternalRow>> children, AnswerHandler handler) {
    return ofStage(children.get(0), () -> sent(handler));
  }

  /**
   * Returns an input over a child's iterator. If the iterator's first element is a {@link RowSink},
   * the child's generated code writes the rows into batches itself.
   *
   * @param sent supplier of the projection from a child's row to the row that is sent; not called
   *     if generated code writes the rows
   */
  static Input ofStage(Iterator<InternalRow> stage, Supplier<OfRows> sent) {
    Optional<InternalRow> first = stage.hasNext() ? Optional.of(stage.next()) : Optional.empty();
    if (first.isPresent() && first.get() instanceof RowSink sink) {
      return new GeneratedInput(sink, stage);
    }
    RowInput rows = new RowInput(stage, sent.get());
    first.ifPresent(rows::send);
    return rows;
  }

  /** Returns an input that takes the child's rows one by one. */
  public static Input ofRows(List<Iterator<InternalRow>> children, AnswerHandler handler) {
    return new RowInput(children.get(0), sent(handler));
  }

  /**
   * Returns the projection to the rows that are sent. From now on, the input rows wait in Spark's
   * queue, if the handler needs them for the answers.
   */
  private static OfRows sent(AnswerHandler handler) {
    return handler.keepRows().orElseGet(() -> (OfRows) handler);
  }

  /** Returns an input that copies columns, into batches of other sizes than the child's batches. */
  public static Input ofColumns(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    return new ColumnInput(children.get(0));
  }

  /** Returns an input that copies columns, and sends each batch of the child as one batch. */
  public static Input ofBatches(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    return new SourceBatches(children.get(0), batch -> new ColumnInput(List.of(batch).iterator()));
  }

  /** Returns an input that copies row by row, and sends each batch of the child as one batch. */
  public static Input ofBatchRows(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    OfRows sent = sent(handler);
    return new SourceBatches(
        children.get(0), batch -> new RowInput(batch.rowIterator(), sent));
  }

  abstract boolean hasNext();

  /**
   * Sets the writers of an input that already writes rows while {@link #hasNext} runs.
   *
   * @param next supplier of empty writers, called whenever one is needed
   * @param batchRows number of rows of a full batch
   */
  void writeTo(Supplier<RootWriter> next, int batchRows) {}

  /** Ends the batch: all further rows go to another writer. */
  void cut() {}

  /**
   * Appends the next rows, as far as the writer has room; {@link #hasNext} must have returned true.
   *
   * @return number of rows appended
   */
  abstract int fill(RootWriter writer, int mostRows);

  /**
   * Whether the next row belongs to the same group, or side of a cogroup, as the rows that fill()
   * wrote last. If {@link #endsBatches}: whether the next row belongs to the same batch.
   */
  boolean goesOn() {
    return false;
  }

  /** Whether the input says where batches end, whatever the settings say. */
  boolean endsBatches() {
    return false;
  }
}
