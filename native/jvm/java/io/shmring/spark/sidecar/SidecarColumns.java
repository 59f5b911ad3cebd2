package io.shmring.spark.sidecar;

import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.SparkPlan;
import scala.runtime.AbstractPartialFunction;

/** Lets sidecars' nodes have their child's columns, once Spark has said where it makes rows of them. */
public final class SidecarColumns extends ColumnarRule {
  @Override
  public Rule<SparkPlan> postColumnarTransitions() {
    return new OverColumns();
  }

  private static final class OverColumns extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      return plan.transformUp(
          new AbstractPartialFunction<>() {
            @Override
            public boolean isDefinedAt(SparkPlan node) {
              return node instanceof SidecarUnaryNode;
            }

            @Override
            public SparkPlan apply(SparkPlan node) {
              return ((SidecarUnaryNode) node).overColumns();
            }
          });
    }
  }
}
