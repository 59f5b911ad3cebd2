package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.SidecarCall;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.MapInPandas;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Plans functions that nobody has named, for Spark's own Python workers with their batches over rings.
 * Of those that are left to Spark's way it puts the reason behind the name, where explain() shows it.
 */
public final class PythonStrategy extends SparkStrategy {
  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    Optional<SparkPlan> planned = Optional.empty();
    if (PythonCalls.areWanted() && SidecarStrategy.isWanted()) {
      Optional<String> why = PythonCalls.objection().or(() -> objection(plan));
      LogicalPlan marked = plan.transformExpressions(new Mark(why.orElse("")));
      if (marked != plan) { // it has functions that are not marked
        why.ifPresent(PythonCalls::tell);
        planned = Optional.of(why.isPresent() ? planLater(marked) : overRings(plan));
      }
    }
    return CollectionConverters.asScala(planned.map(List::of).orElse(List.of())).toList();
  }

  private static Optional<String> objection(LogicalPlan plan) {
    if (plan instanceof ArrowEvalPython eval) {
      return PythonCalls.objection(eval);
    }
    boolean isProfiled =
        plan instanceof MapInArrow arrow && arrow.profile().isDefined()
            || plan instanceof MapInPandas pandas && pandas.profile().isDefined();
    if (isProfiled) {
      return Optional.of("it has a resource profile");
    }
    return plan instanceof MapInArrow || plan instanceof MapInPandas
        ? SparkTypes.unsupported(plan.children().head().schema())
            .or(() -> SparkTypes.unsupported(plan.schema()))
        : Optional.of("functions of this kind are not taken");
  }

  /** A plan that there is no objection to. */
  private SparkPlan overRings(LogicalPlan plan) {
    SparkPlan child = planLater(plan.children().head());
    if (plan instanceof ArrowEvalPython eval) {
      return new PythonUdfExec(
          eval.udfs(), eval.resultAttrs(), PythonCalls.artifacts(), false, child);
    }
    Expression function =
        plan instanceof MapInArrow arrow
            ? arrow.functionExpr()
            : ((MapInPandas) plan).functionExpr();
    boolean isBarrier =
        plan instanceof MapInArrow arrow ? arrow.isBarrier() : ((MapInPandas) plan).isBarrier();
    return new PythonMapExec(
        (PythonUDF) function, plan.output(), isBarrier, PythonCalls.artifacts(), false, child);
  }

  /** Puts a reason behind the name of each function that has none, and is no sidecar's. */
  private static final class Mark extends AbstractPartialFunction<Expression, Expression> {
    private static final String BEGINS = " [Spark's own way: ";

    private final String why;

    Mark(String why) {
      this.why = why;
    }

    @Override
    public boolean isDefinedAt(Expression each) {
      return each instanceof PythonFuncExpression function
          && !function.name().contains(BEGINS)
          && !(each instanceof PythonUDF udf
              && (SidecarCall.of(udf).isPresent() || UdfCall.of(udf).isPresent()));
    }

    @Override
    @SuppressWarnings("unchecked") // it takes expressions, and gives them
    public <A extends Expression, B> B applyOrElse(A each, Function1<A, B> otherwise) {
      if (!isDefinedAt(each)) {
        return otherwise.apply(each);
      }
      List<Object> elements = new ArrayList<>();
      CollectionConverters.asJava(each.productIterator()).forEachRemaining(elements::add);
      elements.set(0, ((PythonFuncExpression) each).name() + BEGINS + why + "]");
      return (B) each.makeCopy(elements.toArray());
    }
  }
}
