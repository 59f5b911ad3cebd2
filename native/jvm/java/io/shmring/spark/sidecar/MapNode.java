package io.shmring.spark.sidecar;

import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/** A function of batches: the child's rows go, and the answer's come instead of them. */
abstract class MapNode extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  final Seq<Attribute> output;
  final boolean isBarrier;

  MapNode(
      String name,
      Seq<Attribute> output,
      boolean isBarrier,
      boolean givesColumns,
      SparkPlan child) {
    super(name, givesColumns, child);
    this.output = output;
    this.isBarrier = isBarrier;
  }

  abstract SparkPlan copy(boolean givesColumns, SparkPlan child);

  @Override
  public final Seq<Attribute> output() {
    return output;
  }

  @Override
  final boolean sendsColumns() {
    return true;
  }

  @Override
  final boolean sendsAllRows() {
    return true;
  }

  @Override
  final boolean isBarrier() {
    return isBarrier;
  }

  @Override
  public final SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.head());
  }

  @Override
  final Optional<SparkPlan> givingColumns() {
    return Optional.of(copy(true, child()));
  }
}
