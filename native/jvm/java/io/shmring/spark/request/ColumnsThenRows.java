package io.shmring.spark.request;

import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.request.Signature.OfRows;
import java.util.Arrays;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Joins results of UDFs with their input. Input columns stay in the vectors that the arguments are
 * sent from, until the results come. Once the vectors would take too much memory, input rows wait
 * in Spark's queue instead.
 */
public final class ColumnsThenRows extends UdfAnswers {
  private final StructType types; // types of the input's columns with the results beside them
  private final int columns; // number of the input's columns
  private final ColumnRows ofColumns;
  private final Supplier<OverRows> overRows;
  private Optional<OverRows> rows = Optional.empty(); // set once rows wait in Spark's queue

  /**
   * @param rows types of the child's columns
   * @param results types of the UDFs' results
   * @param isOfSidecar whether a sidecar answers, and not a Python worker of Spark's
   * @param overRows maker of the handler that joins results with waiting rows
   */
  public ColumnsThenRows(
      StructType rows, StructType results, boolean isOfSidecar, Supplier<OverRows> overRows) {
    super(results, isOfSidecar, false);
    this.types =
        new StructType(
            Stream.of(rows.fields(), results.fields())
                .flatMap(Arrays::stream)
                .toArray(StructField[]::new));
    this.columns = rows.size();
    this.ofColumns = new ColumnRows(types);
    this.overRows = overRows;
  }

  @Override
  public Optional<OfRows> keepRows() {
    rows = Optional.of(overRows.get());
    return Optional.of(rows.get());
  }

  /**
   * Returns `rows` if the input rows of the oldest request under way wait in Spark's queue. Returns
   * empty if that request's input columns stay in vectors. If no request is under way, the next
   * request decides.
   */
  private Optional<OverRows> now() {
    return rows.filter(each -> !isUnderWay());
  }

  @Override
  public void sent(Vectors vectors) {
    if (rows.isPresent()) {
      rows.get().sent(vectors);
    } else {
      super.sent(vectors);
    }
  }

  @Override
  public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
    return now().isPresent() ? rows.get().answered(piece, batches) : super.answered(piece, batches);
  }

  /**
   * Returns the child's columns with the results beside them. The vectors that were sent may have
   * computed arguments behind the child's columns; these arguments are left out.
   */
  @Override
  public ColumnarBatch columns(VectorSchemaRoot results) {
    return now().isPresent()
        ? rows.get().columns(results)
        : FlatColumn.batch(sentOf(results.getRowCount()), columns, results);
  }

  /**
   * Returns the types of the rows if the piece's input rows wait in the queue, or if the piece has
   * nulls where its type allows none. The task then makes rows of the piece, as Spark makes rows of
   * every piece, and so raises Spark's error at a forbidden null even if no operator above needs
   * the value.
   */
  @Override
  public Optional<StructType> onlyRows() {
    return now().isEmpty() && !hasForbiddenNulls() ? Optional.empty() : Optional.of(types);
  }

  @Override
  public Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
    return now().isPresent() ? rows.get().rows(piece) : ofColumns.of(piece);
  }

  @Override
  public Optional<String> ended() {
    return now().isPresent() ? rows.get().ended() : super.ended();
  }
}
