package io.shmring.spark.functions;

import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.FunctionKind;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.immutable.Seq;

/**
 * Plans two kinds of functions: calls of a sidecar (shmring.spark.through(...) and shmring's UDFs),
 * which the JVM makes without a Python worker, and ordinary Python functions, which Spark's workers
 * execute with batches over rings. Everything else is left to Spark's planner, and the reason is
 * appended to the functions' names, where explain() shows it. If a mapInArrow of a sidecar is left
 * to Spark, Spark's Python workers send the batches to the sidecar.
 */
public final class FunctionStrategy extends SparkStrategy {
  /** Setting: if false, all plans are left to Spark's planner. */
  static final String DIRECT = "spark.shmring.direct";

  private static final String NOT_TAKEN = "functions of this kind are not taken";

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    boolean isWanted = Boolean.parseBoolean(SQLConf.get().getConfString(DIRECT, "true"));
    Optional<SparkPlan> planned =
        isWanted ? planned(plan, FunctionPlan.of(plan)) : Optional.empty();
    return FunctionNode.seq(planned.stream().toList());
  }

  private Optional<SparkPlan> planned(LogicalPlan plan, Optional<FunctionPlan> functions) {
    return functions
        .flatMap(each -> each.ofSidecar(this::planLater))
        .or(() -> ofPython(plan, functions));
  }

  private Optional<SparkPlan> ofPython(LogicalPlan plan, Optional<FunctionPlan> functions) {
    if (!PythonCalls.areWanted() || functions.filter(FunctionPlan::isSparks).isPresent()) {
      return Optional.empty();
    }
    Optional<String> why = PythonCalls.objection(SQLConf.get()).or(() -> objection(functions));
    Optional<LogicalPlan> marked =
        LeftToSpark.marked(plan, why.orElse(""), FunctionStrategy::isNoSidecars);
    marked.ifPresent(each -> why.ifPresent(PythonCalls::tell));
    return marked.map(
        each -> why.isPresent() ? planLater(each) : overRings(functions.orElseThrow()));
  }

  // CHANGE: edit this for a new setting of Spark's sessions
  private static Optional<String> objection(Optional<FunctionPlan> functions) {
    return functions.isPresent()
            && FunctionKind.of(functions.get().functions().get(0).evalType()).isPresent()
        ? functions.get().objection()
        : Optional.of(NOT_TAKEN);
  }

  private static boolean isNoSidecars(PythonFuncExpression function) {
    return !(function instanceof PythonUDF udf
        && (SidecarCall.of(udf).isPresent() || UdfCall.of(udf).isPresent()));
  }

  private SparkPlan overRings(FunctionPlan functions) {
    PythonCalls.tellOfRings(functions.plan().nodeName());
    return functions.overRings(PythonCalls.artifacts(), this::planLater);
  }
}
