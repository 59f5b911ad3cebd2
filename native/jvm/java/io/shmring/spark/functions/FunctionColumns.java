package io.shmring.spark.functions;

import java.util.Arrays;
import java.util.Optional;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.types.BinaryType;
import scala.PartialFunction$;

/**
 * Lets shmring's plan nodes ({@link FunctionNode}) take and give columns instead of rows. Runs
 * after Spark has put its transitions between columns and rows into the plan. A batch that a
 * FunctionNode gives is valid only until the next batch is asked for. Therefore only two kinds of
 * nodes take columns from a FunctionNode: another FunctionNode, and ColumnsToRowsExec. Neither
 * needs a batch for longer.
 */
public final class FunctionColumns extends ColumnarRule {
  @Override
  public Rule<SparkPlan> postColumnarTransitions() {
    return new OverColumns();
  }

  private static final class OverColumns extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      SparkPlan taking =
          plan.transformUp(
              PartialFunction$.MODULE$.fromFunction(
                  node ->
                      overGenerated(
                          node instanceof FunctionNode ours ? ours.overColumns() : node)));
      return generated(taking, false).orElse(taking);
    }
  }

  /**
   * Returns the node, or a copy of it over children that give columns instead of rows if {@link
   * #generated} finds that this is faster.
   */
  static SparkPlan overGenerated(SparkPlan node) {
    boolean fused = node instanceof CodegenSupport generates && generates.supportCodegen();
    return node.mapChildren(child -> generated(child, fused).orElse(child));
  }

  /**
   * Returns a child that gives columns instead of rows, with generated code above it that turns the
   * columns into rows; empty if this is not faster, or the child is not a FunctionNode.
   *
   * @param fused whether the child's parent generates code too: Spark then joins the code of both,
   *     which reads only the values that the parent needs
   */
  private static Optional<SparkPlan> generated(SparkPlan node, boolean fused) {
    if (!(node instanceof FunctionNode function)
        || function.givesColumns
        || !node.conf().wholeStageEnabled()
        || WholeStageCodegenExec.isTooManyFields(node.conf(), node.schema())
        || !fused && hasBinary(node)) {
      return Optional.empty();
    }
    return function.givingColumns().map(ColumnsToRowsExec::new);
  }

  /**
   * Whether a column of the node is a binary. Spark's generated code makes rows with binaries no
   * faster than the node itself does: the generated code copies each binary into an array first,
   * and then from the array into the row.
   */
  private static boolean hasBinary(SparkPlan node) {
    return Arrays.stream(node.schema().fields())
        .anyMatch(field -> field.dataType() instanceof BinaryType);
  }
}
