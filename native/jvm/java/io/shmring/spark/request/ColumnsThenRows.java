package io.shmring.spark.request;

import io.shmring.spark.request.Signature.AnswerHandler;
import io.shmring.spark.request.Signature.OfRows;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Joins results of UDFs with their input. Input columns stay in vectors until the results come;
 * once the vectors would take too much memory, input rows wait in Spark's queue instead.
 */
public final class ColumnsThenRows implements AnswerHandler {
  private final StructType types;
  private final UdfAnswers columns;
  private final Supplier<UdfAnswers.OverRows> overRows;
  private Optional<UdfAnswers.OverRows> rows = Optional.empty(); // set once rows wait
  private int underWay; // requests whose columns stay in vectors

  /**
   * @param rows types of the child's columns
   * @param results types of the UDFs' results
   * @param isOfSidecar whether a sidecar answers, and not a Python worker of Spark's
   * @param overRows maker of the handler that joins results with waiting rows
   */
  public ColumnsThenRows(
      StructType rows,
      StructType results,
      boolean isOfSidecar,
      Supplier<UdfAnswers.OverRows> overRows) {
    this.types = UdfAnswers.joined(rows, results);
    this.columns = new UdfAnswers.OfColumns(rows, results, isOfSidecar);
    this.overRows = overRows;
  }

  @Override
  public Optional<OfRows> keepRows() {
    rows = Optional.of(overRows.get());
    return Optional.of(rows.get());
  }

  /** Returns the handler of the oldest request, or of the next one if none is under way. */
  private UdfAnswers now() {
    return rows.isPresent() && underWay == 0 ? rows.get() : columns;
  }

  @Override
  public void sent(Vectors vectors) {
    if (rows.isPresent()) {
      rows.get().sent(vectors);
    } else {
      underWay++;
      columns.sent(vectors);
    }
  }

  @Override
  public Optional<String> objection(Schema got) {
    return columns.objection(got);
  }

  @Override
  public Optional<String> answered(VectorSchemaRoot piece) {
    return now().answered(piece);
  }

  @Override
  public ColumnarBatch columns(VectorSchemaRoot piece) {
    return now().columns(piece);
  }

  /**
   * Makes rows of a piece if its input rows wait in the queue, or if it has nulls where its type
   * allows none: for these, {@link MapAnswers.OfPython#onlyRows} has the reason.
   */
  @Override
  public Optional<StructType> onlyRows() {
    return now() == columns && !columns.hasForbiddenNulls()
        ? Optional.empty()
        : Optional.of(types);
  }

  @Override
  public Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
    return now().rows(piece);
  }

  @Override
  public Optional<String> ended() {
    UdfAnswers answered = now();
    underWay -= answered == columns ? 1 : 0;
    return answered.ended();
  }
}
