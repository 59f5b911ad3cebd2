package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import java.util.List;
import java.util.Optional;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans mapInArrow(shmring.spark.through(...)) so that no Python worker takes part. What it leaves
 * alone Spark plans as ever, with the same results.
 */
public final class SidecarStrategy extends SparkStrategy {
  /** Set to false, all is left alone. */
  static final String DIRECT = "spark.shmring.direct";

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    Optional<SparkPlan> planned =
        plan instanceof MapInArrow map && isWanted() ? plan(map) : Optional.empty();
    return CollectionConverters.asScala(planned.map(List::of).orElse(List.of())).toList();
  }

  private static boolean isWanted() {
    return Boolean.parseBoolean(SQLConf.get().getConfString(DIRECT, "true"));
  }

  private Optional<SparkPlan> plan(MapInArrow map) {
    LogicalPlan child = map.child();
    if (!(map.functionExpr() instanceof PythonUDF function)
        || function.evalType() != PythonEvalType.SQL_MAP_ARROW_ITER_UDF()
        || map.profile().isDefined()
        || !SparkTypes.areSupported(child.schema())
        || !SparkTypes.areSupported(map.schema())) {
      return Optional.empty();
    }
    return SidecarCall.of(function)
        .map(call -> new SidecarExec(call, map.output(), map.isBarrier(), planLater(child)));
  }
}
