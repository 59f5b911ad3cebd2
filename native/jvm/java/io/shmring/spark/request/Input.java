package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import io.shmring.spark.request.Signature.AnswerHandler;
import io.shmring.spark.request.Signature.OfRows;
import java.io.Serializable;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Writes the rows of a task's children into batches. */
public abstract class Input {
  /** Makes an input over the partitions of the node's children. */
  public interface Maker<T> extends Serializable {
    Input of(List<Iterator<T>> children, AnswerHandler handler);
  }

  /**
   * Returns an input over a stage, which either gives rows or has generated code that writes the
   * rows into batches itself.
   */
  public static Input ofStage(List<Iterator<InternalRow>> children, AnswerHandler handler) {
    return ofStage(children.get(0), () -> handler.keepRows().orElseGet(() -> (OfRows) handler));
  }

  /**
   * Returns an input over a stage.
   *
   * @param sent supplier of the projection to the rows that are sent; used if the stage gives rows
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

  /** Returns an input over rows, which are taken one by one. */
  public static Input ofRows(List<Iterator<InternalRow>> children, AnswerHandler handler) {
    return new RowInput(children.get(0), (OfRows) handler);
  }

  /** Returns an input over batches of columns. */
  public static Input ofColumns(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    return ofColumns(children.get(0));
  }

  /** Returns an input over batches of columns, each of which is sent as one batch. */
  public static Input ofBatches(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    return new SourceBatches(children.get(0), batch -> ofColumns(List.of(batch).iterator()));
  }

  /** Returns an input over batches of columns, each of which is sent as one batch, row by row. */
  public static Input ofBatchRows(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
    return new SourceBatches(
        children.get(0), batch -> new RowInput(batch.rowIterator(), (OfRows) handler));
  }

  /** Returns an input over one child's batches of columns. */
  static Input ofColumns(Iterator<ColumnarBatch> batches) {
    return new ColumnInput(batches);
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

  /** Returns the side of the next rows: 0, or 1 for the right side of a cogroup. */
  int side() {
    return 0;
  }

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

  /** Whether each call of fill() writes one group, or a part of one. */
  boolean isOfGroups() {
    return false;
  }

  /** Whether a sidecar gets each group, or cogroup, as one batch. */
  boolean isWhole() {
    return false;
  }

  /** Whether a batch has one row, which has a list of rows for each side of a cogroup. */
  boolean isOfLists() {
    return false;
  }
}
