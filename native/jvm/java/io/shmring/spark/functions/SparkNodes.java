package io.shmring.spark.functions;

import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.execution.BinaryExecNode;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnaryExecNode;
import org.apache.spark.sql.execution.python.EvalPythonEvaluatorFactory;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.execution.window.WindowExecBase;
import scala.collection.immutable.Seq;

/**
 * Contains the classes of shmring's plan nodes. They have the types that Spark's rules look for, so
 * that a rule treats a node of shmring as it treats Spark's own node for the same functions:
 * PushDownLocalSort and ConvertSortMergeJoinToShuffledHashJoin look for WindowExecBase,
 * InsertSortForLimitAndOffset for EvalPythonExec, CoalesceShufflePartitions for UnaryExecNode.
 */
final class SparkNodes {
  private SparkNodes() {}

  public static sealed class OverOne extends FunctionNode implements UnaryExecNode
      permits OfUdfs, OfWindows {
    public OverOne(
        Class<? extends Work> kind,
        Seq<Object> components,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(kind, components, givesColumns, children);
    }

    @Override
    public SparkPlan withNewChildInternal(SparkPlan child) {
      return withNewChildren(seq(List.of(child)));
    }
  }

  /** A node over the two frames of a cogroup. */
  public static final class OverTwo extends FunctionNode implements BinaryExecNode {
    public OverTwo(
        Class<? extends Work> kind,
        Seq<Object> components,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(kind, components, givesColumns, children);
    }

    @Override
    public SparkPlan left() {
      return child();
    }

    @Override
    public SparkPlan right() {
      return children().last();
    }

    @Override
    public SparkPlan withNewChildrenInternal(SparkPlan left, SparkPlan right) {
      return withNewChildren(seq(List.of(left, right)));
    }
  }

  public static final class OfUdfs extends OverOne implements EvalPythonExec {
    public OfUdfs(
        Class<? extends Work> kind,
        Seq<Object> components,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(kind, components, givesColumns, children);
    }

    /** Returns the UDFs of Spark's own workers; UDFs of a sidecar are not among them. */
    @Override
    public Seq<PythonUDF> udfs() {
      return work() instanceof UdfPlan.PythonUdfs udfs ? udfs.udfs() : seq(List.of());
    }

    @Override
    public Seq<Attribute> resultAttrs() {
      return work().results();
    }

    /** Never runs: only EvalPythonExec's doExecute() calls it, and FunctionNode has its own. */
    @Override
    public EvalPythonEvaluatorFactory evaluatorFactory() {
      throw new UnsupportedOperationException(nodeName() + " has no evaluator");
    }
  }

  public static final class OfWindows extends OverOne implements WindowExecBase {
    public OfWindows(
        Class<? extends Work> kind,
        Seq<Object> components,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(kind, components, givesColumns, children);
    }

    private WindowPlan.PythonWindows windows() {
      return (WindowPlan.PythonWindows) work();
    }

    @Override
    public Seq<NamedExpression> windowExpression() {
      return windows().windows();
    }

    @Override
    public Seq<Expression> partitionSpec() {
      return windows().partition();
    }

    @Override
    public Seq<SortOrder> orderSpec() {
      return windows().order();
    }
  }
}
