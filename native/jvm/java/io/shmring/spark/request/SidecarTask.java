package io.shmring.spark.request;

import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * What each task of the operator is to do.
 *
 * @param <T> what the child gives
 */
public final class SidecarTask<T> extends AbstractFunction1<Iterator<T>, Iterator<InternalRow>>
    implements Serializable {
  private static final long serialVersionUID = 1L;

  final SidecarCall call;
  final Signature signature;
  final Input.Kind<T> kind;
  final int rowsPerBatch;
  final SidecarMetrics metrics;

  /**
   * @param rowsPerBatch 0 or less: as many as the ring takes
   */
  public SidecarTask(
      SidecarCall call,
      Signature signature,
      Input.Kind<T> kind,
      int rowsPerBatch,
      SidecarMetrics metrics) {
    this.call = call;
    this.signature = signature;
    this.kind = kind;
    this.rowsPerBatch = rowsPerBatch > 0 ? rowsPerBatch : Integer.MAX_VALUE;
    this.metrics = metrics;
  }

  @Override
  public Iterator<InternalRow> apply(Iterator<T> child) {
    TaskContext context = TaskContext.get();
    AnsweredRows answered =
        new AnsweredRows(this, CollectionConverters.asJava(child), context);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> answered.close());
    return CollectionConverters.asScala(answered);
  }
}
