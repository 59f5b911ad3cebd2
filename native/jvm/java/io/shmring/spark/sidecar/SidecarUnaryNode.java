package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.request.ColumnInput;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.RowInput;
import io.shmring.spark.request.SidecarCall;
import io.shmring.spark.request.SidecarTask;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.reflect.ClassTag;

/** A node over one child, whose rows or columns go. */
abstract class SidecarUnaryNode extends SidecarNode {
  private static final long serialVersionUID = 1L;

  private final SparkPlan child;

  SidecarUnaryNode(SidecarCall call, SparkPlan child) {
    super(call);
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

  /** The node over a child's columns instead of the rows that Spark would make of them. */
  final SparkPlan overColumns() {
    return child instanceof ColumnarToRowExec rows && takesColumns(rows.child())
        ? withNewChildren(CollectionConverters.asScala(List.of(rows.child())).toList())
        : this;
  }

  private boolean takesColumns(SparkPlan columns) {
    return columns.supportsColumnar() && sendsColumns() && BatchSizes.areKnown(columns.schema());
  }

  final boolean takesColumns() {
    return takesColumns(child);
  }

  /** How the child's rows become batches. */
  Input.Kind<InternalRow> rows() {
    return RowInput::new;
  }

  @Override
  public final RDD<InternalRow> doExecute() {
    return takesColumns()
        ? mapped(child.executeColumnar(), ColumnInput::new)
        : mapped(child.execute(), rows());
  }

  private <T> RDD<InternalRow> mapped(RDD<T> input, Input.Kind<T> kind) {
    SidecarTask<T> task = task(kind);
    ClassTag<InternalRow> rows = ClassTag$.MODULE$.apply(InternalRow.class);
    return isBarrier()
        ? input.barrier().mapPartitions(task, false, rows)
        : input.mapPartitions(task, false, rows);
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
