package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * A sidecar's work in a plan, without Python: each task sends its rows over the ring and takes the
 * answers. Spark copies a node through its public constructor, whose arguments are the product's
 * elements.
 */
abstract class SidecarNode extends SparkPlan {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final SparkPlan child;
  private transient SidecarMetrics metrics;

  SidecarNode(SidecarCall call, SparkPlan child) {
    this.call = call;
    this.child = child;
  }

  /** What is sent, and what comes of the answers. */
  abstract Signature signature(SparkTypes types);

  /** The constructor's arguments, in order. */
  abstract List<Object> elements();

  /** Columns that are not the child's. */
  abstract List<? extends Expression> produced();

  /** Whether all tasks must run at one time. */
  boolean isBarrier() {
    return false;
  }

  final SparkPlan child() {
    return child;
  }

  /** Whether the child's columns are what is sent, so that they need not become rows. */
  abstract boolean sendsColumns();

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
    SQLConf conf = conf();
    SparkTypes types = new SparkTypes(conf.sessionLocalTimeZone(), conf.arrowUseLargeVarTypes());
    SidecarTask<T> task =
        new SidecarTask<>(call, signature(types), kind, conf.arrowMaxRecordsPerBatch(), known());
    ClassTag<InternalRow> rows = ClassTag$.MODULE$.apply(InternalRow.class);
    return isBarrier()
        ? input.barrier().mapPartitions(task, false, rows)
        : input.mapPartitions(task, false, rows);
  }

  private synchronized SidecarMetrics known() {
    if (metrics == null) {
      metrics = SidecarMetrics.make(sparkContext());
    }
    return metrics;
  }

  @Override
  public final Map<String, SQLMetric> metrics() {
    return known().byName();
  }

  @Override
  public final AttributeSet producedAttributes() {
    return AttributeSet$.MODULE$.apply(CollectionConverters.asScala(List.copyOf(produced())));
  }

  @Override
  public final Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public final Seq<SparkPlan> children() {
    return CollectionConverters.asScala(List.of(child)).toList();
  }

  @Override
  public final String nodeName() {
    return "Sidecar " + call.sidecar();
  }

  @Override
  public final int productArity() {
    return elements().size();
  }

  @Override
  public final Object productElement(int n) {
    return elements().get(n);
  }

  @Override
  public final boolean canEqual(Object other) {
    return other != null && other.getClass() == getClass();
  }

  @Override
  public final boolean equals(Object other) {
    return canEqual(other) && elements().equals(((SidecarNode) other).elements());
  }

  @Override
  public final int hashCode() {
    return elements().hashCode();
  }
}
