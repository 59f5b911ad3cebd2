package io.shmring.spark.request;

import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * What each task of the operator is to do.
 *
 * @param <T> what the child gives
 * @param <R> what this gives
 */
public final class SidecarTask<T, R> extends AbstractFunction1<Iterator<T>, Iterator<R>>
    implements Serializable {
  private static final long serialVersionUID = 1L;

  /** What becomes of the answers. */
  @FunctionalInterface
  public interface Output<R> extends Serializable {
    java.util.Iterator<R> of(AnsweredBatches answers);

    /** Rows, each until the next one. */
    static Output<InternalRow> rows() {
      return AnsweredBatches.Rows::new;
    }

    /** Columns, each batch until the next one is asked for. */
    static Output<ColumnarBatch> columns() {
      return AnsweredBatches.Columns::new;
    }
  }

  final Call call;
  final Signature signature;
  final Batches.Input.Kind<T> kind;
  private final Output<R> output;
  final int rowsPerBatch;
  final SidecarMetrics metrics;

  /**
   * @param rowsPerBatch 0 or less: as many as the ring takes
   */
  public SidecarTask(
      Call call,
      Signature signature,
      Batches.Input.Kind<T> kind,
      Output<R> output,
      int rowsPerBatch,
      SidecarMetrics metrics) {
    this.call = call;
    this.signature = signature;
    this.kind = kind;
    this.output = output;
    this.rowsPerBatch = rowsPerBatch > 0 ? rowsPerBatch : Integer.MAX_VALUE;
    this.metrics = metrics;
  }

  @Override
  public Iterator<R> apply(Iterator<T> child) {
    TaskContext context = TaskContext.get();
    AnsweredBatches answers =
        new AnsweredBatches(this, CollectionConverters.asJava(child), context);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> answers.close());
    return CollectionConverters.asScala(output.of(answers));
  }
}
