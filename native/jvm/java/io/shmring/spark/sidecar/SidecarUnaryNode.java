package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.SidecarTask;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** A node over one child, whose rows or columns go. */
abstract class SidecarUnaryNode extends SidecarNode {
  private static final long serialVersionUID = 1L;

  private final SparkPlan child;

  SidecarUnaryNode(String name, boolean givesColumns, SparkPlan child) {
    super(name, givesColumns);
    this.child = child;
  }

  /** Whether all tasks must run at one time. */
  boolean isBarrier() {
    return false;
  }

  final SparkPlan child() {
    return child;
  }

  /** Whether the child's columns are what is sent, so that they need not become rows. */
  boolean sendsColumns() {
    return false;
  }

  /** The node over a child's columns instead of the rows that are made of them. */
  final SparkPlan overColumns() {
    SparkPlan columns = child;
    if (child instanceof ColumnarToRowExec rows) {
      columns = rows.child();
    } else if (child instanceof SidecarNode sidecar) {
      columns = sidecar.givingColumns().orElse(child);
    }
    if (takesColumns(columns)) {
      return columns == child ? this : over(columns);
    }
    return sendsAllRows() && RowsToArrowExec.takes(child) ? over(new RowsToArrowExec(child)) : this;
  }

  private SparkPlan over(SparkPlan better) {
    return withNewChildren(CollectionConverters.asScala(List.of(better)).toList());
  }

  /** Whether the child's rows are what is sent, one by one. */
  boolean sendsAllRows() {
    return false;
  }

  private boolean takesColumns(SparkPlan columns) {
    return columns.supportsColumnar() && sendsColumns() && BatchSizes.areKnown(columns.schema());
  }

  final boolean takesColumns() {
    return takesColumns(child);
  }

  /** How the child's rows become batches. */
  Input.Kind<InternalRow> rows() {
    return sendsAllRows() ? Input::ofStage : Input::ofRows;
  }

  @Override
  final <R> RDD<R> execute(SidecarTask.Output<R> output) {
    return takesColumns()
        ? mapped(child.executeColumnar(), task(Input::ofColumns, output))
        : mapped(child.execute(), task(rows(), output));
  }

  private <T, R> RDD<R> mapped(RDD<T> input, SidecarTask<T, R> task) {
    return isBarrier()
        ? input.barrier().mapPartitions(task, false, given())
        : input.mapPartitions(task, false, given());
  }

  @Override
  public final Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public final Seq<SparkPlan> children() {
    return CollectionConverters.asScala(List.of(child)).toList();
  }
}
