package io.shmring.spark.request;

import io.shmring.spark.request.ResultSchema.NullCheck;
import io.shmring.spark.request.Signature.OfRows;
import java.util.ArrayDeque;
import java.util.Optional;
import java.util.function.Function;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.execution.python.HybridRowQueue;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Joins results of UDFs with the waiting input rows; each row has one result. */
public abstract class UdfAnswers implements AnswerHandler {
  private final StructType results;
  private final NullCheck nulls;
  private final boolean lags;
  private final boolean isOfSidecar;
  // Vectors of unanswered requests, oldest first. Always empty if `lags` is set, because the
  // results of a request's rows may then come with the answer to a later request.
  private final ArrayDeque<Vectors> due = new ArrayDeque<>();
  private int answered; // number of answered rows of the oldest request
  private boolean hasForbiddenNulls; // whether the last piece has nulls where its type has none

  /**
   * @param isOfSidecar whether a sidecar answers. Its results are checked here for nulls where the
   *     type allows none; results of Python workers are checked by Spark
   * @param lags whether the results of a request's rows may come only with the answers to later
   *     requests. The results still come in the order of the rows; the worker checks their number
   */
  UdfAnswers(StructType results, boolean isOfSidecar, boolean lags) {
    this.results = results;
    this.nulls = new NullCheck(results);
    this.lags = lags;
    this.isOfSidecar = isOfSidecar;
  }

  /**
   * Returns the sent rows that the last piece answers, with their arguments. They are valid until
   * the next call, or until the request's vectors are given back.
   *
   * @param count number of rows in the last piece
   */
  final VectorSchemaRoot sentOf(int count) {
    return due.element().part(answered - count, count);
  }

  /**
   * Returns true if a request was sent and its answer has not ended. Always false if `lags` is set,
   * because requests are not recorded then.
   */
  final boolean isUnderWay() {
    return !due.isEmpty();
  }

  @Override
  public void sent(Vectors vectors) {
    if (!lags) {
      due.add(vectors);
    }
  }

  @Override
  public final Optional<String> objection(Schema got) {
    if (!isOfSidecar) {
      ResultSchema.requireReadable(got);
    }
    return ResultSchema.difference(got, results)
        .map(why -> "with other columns than its UDFs were declared with: " + why);
  }

  @Override
  public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
    if (lags) {
      return Optional.empty();
    }
    answered += piece.getRowCount();
    if (answered > due.element().rows()) {
      return Optional.of(miscount());
    }
    Optional<String> objection = nulls.objection(piece.getFieldVectors());
    hasForbiddenNulls = objection.isPresent();
    return isOfSidecar ? objection : Optional.empty();
  }

  final boolean hasForbiddenNulls() {
    return hasForbiddenNulls;
  }

  @Override
  public Optional<String> ended() {
    if (lags) {
      return Optional.empty();
    }
    if (answered != due.element().rows()) {
      return Optional.of(miscount());
    }
    due.remove();
    answered = 0;
    return Optional.empty();
  }

  private String miscount() {
    return String.format(
        "with another number of rows than a UDF must: expected %d, got %d",
        due.element().rows(), answered);
  }

  /** Joins results with rows, or keys, which wait in a queue. */
  public static class OfWaiting extends UdfAnswers {
    private final UnsafeProjection results;
    private final HybridRowQueue waiting;
    private final UnsafeRowJoiner joiner;

    /**
     * Makes the handler of aggregates, which have one result for each group's key, or for each row
     * of a window.
     */
    public OfWaiting(StructType rows, StructType results) {
      this(rows, results, false, true);
    }

    private OfWaiting(StructType rows, StructType results, boolean isOfSidecar, boolean lags) {
      super(results, isOfSidecar, lags);
      this.results = UnsafeProjection.create(results);
      this.waiting = waiting(rows.size());
      this.joiner = GenerateUnsafeRowJoiner.create(rows, results);
    }

    /** Adds a row to the queue, and returns the same row. */
    public final InternalRow add(InternalRow row) {
      waiting.add((UnsafeRow) row);
      return row;
    }

    @Override
    public final Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
      return row -> joiner.join(waiting.remove(), results.apply(row));
    }
  }

  /** Joins results with input rows in a queue; arguments are computed from the rows. */
  public static final class OverRows extends OfWaiting implements OfRows {
    private final OfRows unsafe;
    private final UnsafeProjection arguments;
    private int kept;

    /**
     * @param arguments the UDFs' arguments, computed from the input's attributes
     */
    public OverRows(
        StructType rows,
        Seq<Expression> arguments,
        Seq<Attribute> input,
        StructType results,
        boolean isOfSidecar,
        boolean lags,
        int partition) {
      super(rows, results, isOfSidecar, lags);
      this.unsafe = OfRows.unsafe(rows);
      this.arguments = projection(arguments, input, partition);
    }

    @Override
    public UnsafeRow send(InternalRow row) {
      UnsafeRow ready = unsafe.send(row);
      add(ready);
      kept = ready.getSizeInBytes();
      return arguments.apply(ready);
    }

    @Override
    public int kept() {
      return kept;
    }
  }

  /** Returns the types of columns, named by their places because two columns may have one name. */
  public static StructType types(Seq<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : CollectionConverters.asJava(columns)) {
      types = types.add("_" + types.size(), column.dataType());
    }
    return types;
  }

  /** Returns a partition's projection from input rows to arguments. */
  static UnsafeProjection projection(
      Seq<Expression> arguments, Seq<Attribute> input, int partition) {
    UnsafeProjection projection = UnsafeProjection.create(arguments, input);
    projection.initialize(partition);
    return projection;
  }

  /**
   * Returns a queue for rows that wait for answers. If memory is short, the queue keeps rows in a
   * file. The queue is closed at the end of the task.
   */
  static HybridRowQueue waiting(int columns) {
    TaskContext context = TaskContext.get();
    HybridRowQueue rows = HybridRowQueue.apply(context.taskMemoryManager(), columns);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> rows.close());
    return rows;
  }
}
