package io.shmring.spark.sidecar;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.types.BinaryType;
import scala.PartialFunction$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Lets sidecars' nodes take and give columns, once Spark has said where it makes rows of them. Only
 * these nodes and Spark's ColumnarToRow take columns from one: both are done with a batch when they
 * ask for the next one, which is as long as it is there.
 */
public final class SidecarColumns extends ColumnarRule {
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
                          node instanceof SidecarNode ours ? ours.overColumns() : node)));
      return generated(taking, false).orElse(taking);
    }
  }

  /** The node over children that give columns, where it takes their rows from generated code. */
  static SparkPlan overGenerated(SparkPlan node) {
    boolean fused = node instanceof CodegenSupport generates && generates.supportCodegen();
    List<SparkPlan> children = new ArrayList<>();
    boolean changed = false;
    for (SparkPlan child : CollectionConverters.asJava(node.children())) {
      Optional<SparkPlan> better = generated(child, fused);
      children.add(better.orElse(child));
      changed |= better.isPresent();
    }
    return changed
        ? node.withNewChildren(CollectionConverters.asScala(children).toList())
        : node;
  }

  /**
   * A sidecar's node as one that gives columns, and the rows that Spark's own code makes of them;
   * empty where that does not pay.
   *
   * @param fused whether what is above is of the same code, and takes of a row what it needs
   */
  private static Optional<SparkPlan> generated(SparkPlan node, boolean fused) {
    if (!(node instanceof SidecarNode sidecar)
        || sidecar.givesColumns
        || !node.conf().wholeStageEnabled()
        || WholeStageCodegenExec.isTooManyFields(node.conf(), node.schema())
        || !fused && hasBinary(node)) {
      return Optional.empty();
    }
    return sidecar.givingColumns().map(AnswersToRowsExec::new);
  }

  /** Spark's code copies a binary before it writes the row; ours does not. */
  private static boolean hasBinary(SparkPlan node) {
    return Arrays.stream(node.schema().fields())
        .anyMatch(field -> field.dataType() instanceof BinaryType);
  }
}
