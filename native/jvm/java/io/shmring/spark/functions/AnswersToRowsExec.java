package io.shmring.spark.functions;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ColumnarToRowTransition;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnaryExecNode;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * Turns the columns of a node's answers into rows, as Spark's ColumnarToRow does. This class exists
 * because other extensions replace Spark's class by nodes that only know their own columns (Comet's
 * EliminateRedundantTransitions does).
 */
public final class AnswersToRowsExec extends SparkPlan implements UnaryExecNode, CodegenSupport {
  private final ColumnarToRowExec rows;

  public AnswersToRowsExec(SparkPlan child) {
    this.rows = new ColumnarToRowExec(child);
  }

  @Override
  public SparkPlan child() {
    return rows.child();
  }

  @Override
  public Seq<SparkPlan> children() {
    return rows.children();
  }

  @Override
  public SparkPlan withNewChildInternal(SparkPlan child) {
    return over(child);
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return over(children.head());
  }

  /**
   * Returns a node of this class over a child. A child that is itself a transition to rows is left
   * out, and its own child taken instead: another extension's rule has inserted the transition
   * (Comet's RevertNativeForTransitionHeavyStages does).
   */
  private static SparkPlan over(SparkPlan child) {
    return new AnswersToRowsExec(
        child instanceof ColumnarToRowTransition rows ? rows.child() : child);
  }

  @Override
  public String nodeName() {
    return rows.nodeName();
  }

  @Override
  public Seq<Attribute> output() {
    return rows.output();
  }

  @Override
  public Partitioning outputPartitioning() {
    return rows.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return rows.outputOrdering();
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return rows.metrics();
  }

  @Override
  public RDD<InternalRow> doExecute() {
    return rows.execute();
  }

  // --- generated code: made by the inner ColumnarToRow, whose parent is this node's parent ------

  @Override
  public CodegenSupport parent() {
    return rows.parent();
  }

  @Override
  public void parent_$eq(CodegenSupport parent) {
    rows.parent_$eq(parent);
  }

  @Override
  public Seq<RDD<InternalRow>> inputRDDs() {
    return rows.inputRDDs();
  }

  @Override
  public boolean canCheckLimitNotReached() {
    return rows.canCheckLimitNotReached();
  }

  @Override
  public String doProduce(CodegenContext context) {
    return rows.doProduce(context);
  }

  // --- comparison of plans --------------------------------------------------------------------

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int n) {
    return child();
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof AnswersToRowsExec;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof AnswersToRowsExec same && child().equals(same.child());
  }

  @Override
  public int hashCode() {
    return child().hashCode();
  }
}
