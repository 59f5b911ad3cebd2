package io.shmring.spark.request;

import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.request.Signature.OfRows;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Joins results of UDFs with their input: each request has one result for each of its rows. Input
 * columns stay in the vectors that the arguments are sent from, until the results come. Once the
 * vectors would take too much memory, input rows wait in Spark's queue instead.
 */
public final class UdfAnswers implements AnswerHandler {
  private final StructType types; // types of the input's columns with the results beside them
  private final int columns; // number of the input's columns
  private final StructType results;
  private final boolean isOfSidecar;
  private final Function<List<FieldVector>, Optional<String>> nulls;
  private final ColumnRows ofColumns;
  private final Supplier<WaitingRows.OfUdfs> queue;
  // Handler of the requests whose input rows wait in Spark's queue; set once rows wait.
  private Optional<AnswerHandler> waiting = Optional.empty();
  private final ArrayDeque<Vectors> due = new ArrayDeque<>(); // unanswered requests, oldest first
  private int dueColumns; // requests in `due`, from the oldest on, whose columns stay in vectors
  private int answered; // number of answered rows of the oldest request
  private boolean hasForbiddenNulls; // whether the last piece has nulls where its type has none

  /**
   * @param context the task, which ends the queue of waiting rows
   * @param rows types of the child's columns
   * @param arguments the UDFs' arguments, computed from the input's attributes
   * @param results types of the UDFs' results
   * @param isOfSidecar whether a sidecar answers. Its results are checked here for nulls where the
   *     type allows none; results of Python workers are checked by Spark
   */
  public UdfAnswers(
      TaskContext context,
      StructType rows,
      Seq<Expression> arguments,
      Seq<Attribute> input,
      StructType results,
      boolean isOfSidecar) {
    this.types =
        new StructType(
            Stream.of(rows.fields(), results.fields())
                .flatMap(Arrays::stream)
                .toArray(StructField[]::new));
    this.columns = rows.size();
    this.results = results;
    this.isOfSidecar = isOfSidecar;
    this.nulls = ResultSchema.nullCheck(results);
    this.ofColumns = new ColumnRows(types);
    this.queue =
        () -> new WaitingRows.OfUdfs(context, rows, arguments, input, results);
  }

  @Override
  public Optional<OfRows> keepRows() {
    WaitingRows.OfUdfs rows = queue.get();
    waiting = Optional.of(rows);
    return Optional.of(rows);
  }

  @Override
  public void sent(Vectors vectors) {
    due.add(vectors);
    dueColumns += waiting.isEmpty() ? 1 : 0;
  }

  @Override
  public Optional<String> objection(Schema got) {
    if (!isOfSidecar) {
      ResultSchema.requireReadable(got);
    }
    return difference(got, results);
  }

  /** Returns why Spark cannot take these columns as results of UDFs; empty if it can. */
  static Optional<String> difference(Schema got, StructType results) {
    return ResultSchema.difference(got, results)
        .map(why -> "with other columns than its UDFs were declared with: " + why);
  }

  @Override
  public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
    answered += piece.getRowCount();
    if (answered > due.element().rows()) {
      return Optional.of(miscount());
    }
    Optional<String> objection = nulls.apply(piece.getFieldVectors());
    hasForbiddenNulls = objection.isPresent();
    return isOfSidecar ? objection : Optional.empty();
  }

  @Override
  public Optional<String> ended() {
    if (answered != due.element().rows()) {
      return Optional.of(miscount());
    }
    due.remove();
    dueColumns = Math.max(0, dueColumns - 1);
    answered = 0;
    return Optional.empty();
  }

  private String miscount() {
    return String.format(
        "with another number of rows than a UDF must: expected %d, got %d",
        due.element().rows(), answered);
  }

  /**
   * Returns whether the input rows of the oldest request wait in Spark's queue: its columns do not
   * stay in vectors. If no request is under way, the next request decides.
   */
  private boolean rowsWait() {
    return waiting.isPresent() && dueColumns == 0;
  }

  /**
   * Returns the child's columns with the results beside them. The vectors that were sent may have
   * computed arguments behind the child's columns; these arguments are left out.
   */
  @Override
  public ColumnarBatch columns(VectorSchemaRoot piece) {
    if (rowsWait()) {
      return waiting.get().columns(piece);
    }
    int count = piece.getRowCount();
    return FlatColumn.batch(due.element().part(answered - count, count), columns, piece);
  }

  /**
   * Returns the types of the rows if the piece's input rows wait in the queue, or if the piece has
   * nulls where its type allows none. The task then makes rows of the piece, as Spark makes rows of
   * every piece, and so raises Spark's error at a forbidden null even if no operator above needs
   * the value.
   */
  @Override
  public Optional<StructType> onlyRows() {
    return rowsWait() || hasForbiddenNulls ? Optional.of(types) : Optional.empty();
  }

  @Override
  public Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
    return rowsWait() ? waiting.get().rows(piece) : ofColumns.of(piece);
  }

  /** Returns the types of columns, named by their places because two columns may have one name. */
  public static StructType types(Seq<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : CollectionConverters.asJava(columns)) {
      types = types.add("_" + types.size(), column.dataType());
    }
    return types;
  }

  /** Returns a task's projection from input rows to arguments. */
  static UnsafeProjection projection(
      Seq<Expression> arguments, Seq<Attribute> input, TaskContext context) {
    UnsafeProjection projection = UnsafeProjection.create(arguments, input);
    projection.initialize(context.partitionId());
    return projection;
  }
}
