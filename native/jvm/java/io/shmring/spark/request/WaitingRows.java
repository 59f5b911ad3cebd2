package io.shmring.spark.request;

import io.shmring.spark.request.Signature.OfRows;
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

/**
 * Joins results of Python workers with rows, or keys, which wait in Spark's queue. The results come
 * in the order of the rows, but not request by request: an answer may have results for rows of
 * earlier requests. This class does not count the results, because the worker checks their number.
 */
public class WaitingRows implements AnswerHandler {
  private final StructType types; // types of the results
  private final UnsafeProjection results;
  private final HybridRowQueue waiting;
  private final UnsafeRowJoiner joiner;

  public WaitingRows(TaskContext context, StructType rows, StructType results) {
    this.types = results;
    this.results = UnsafeProjection.create(results);
    this.waiting = queue(context, rows.size());
    this.joiner = GenerateUnsafeRowJoiner.create(rows, results);
  }

  /**
   * Returns a queue for rows that wait for answers. If memory is short, the queue keeps rows in a
   * file. The queue is closed at the end of the task.
   */
  static HybridRowQueue queue(TaskContext context, int columns) {
    HybridRowQueue rows = HybridRowQueue.apply(context.taskMemoryManager(), columns);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> rows.close());
    return rows;
  }

  /** Adds a row to the queue, and returns the same row. */
  public final InternalRow add(InternalRow row) {
    waiting.add((UnsafeRow) row);
    return row;
  }

  @Override
  public final Optional<String> objection(Schema got) {
    ResultSchema.requireReadable(got);
    return UdfAnswers.difference(got, types);
  }

  @Override
  public final Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
    return Optional.empty();
  }

  @Override
  public final Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
    return row -> joiner.join(waiting.remove(), results.apply(row));
  }

  /** Lets the input rows of UDFs wait, and sends the arguments that are computed from the rows. */
  public static final class OfUdfs extends WaitingRows implements OfRows {
    private final OfRows unsafe;
    private final UnsafeProjection arguments;
    private int kept;

    /**
     * @param arguments the UDFs' arguments, computed from the input's attributes
     */
    public OfUdfs(
        TaskContext context,
        StructType rows,
        Seq<Expression> arguments,
        Seq<Attribute> input,
        StructType results) {
      super(context, rows, results);
      this.unsafe = OfRows.unsafe(rows);
      this.arguments = UdfAnswers.projection(arguments, input, context);
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
}
