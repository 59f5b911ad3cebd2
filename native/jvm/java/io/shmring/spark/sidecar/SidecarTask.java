package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import java.io.Serializable;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/** What each task of the operator is to do. */
final class SidecarTask extends AbstractFunction1<Iterator<InternalRow>, Iterator<InternalRow>>
    implements Serializable {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final StructType input;
  private final StructType output;
  private final SparkTypes types;
  private final int rowsPerBatch;
  private final SidecarMetrics metrics;

  /**
   * @param rowsPerBatch 0 or less: as many as the ring takes
   */
  SidecarTask(
      SidecarCall call,
      StructType input,
      StructType output,
      SparkTypes types,
      int rowsPerBatch,
      SidecarMetrics metrics) {
    this.call = call;
    this.input = input;
    this.output = output;
    this.types = types;
    this.rowsPerBatch = rowsPerBatch > 0 ? rowsPerBatch : Integer.MAX_VALUE;
    this.metrics = metrics;
  }

  @Override
  public Iterator<InternalRow> apply(Iterator<InternalRow> rows) {
    TaskContext context = TaskContext.get();
    AnsweredRows answered =
        new AnsweredRows(this, CollectionConverters.asJava(rows), context);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> answered.close());
    return CollectionConverters.asScala(answered);
  }

  SidecarCall call() {
    return call;
  }

  StructType input() {
    return input;
  }

  StructType output() {
    return output;
  }

  SparkTypes types() {
    return types;
  }

  int rowsPerBatch() {
    return rowsPerBatch;
  }

  SidecarMetrics metrics() {
    return metrics;
  }
}
