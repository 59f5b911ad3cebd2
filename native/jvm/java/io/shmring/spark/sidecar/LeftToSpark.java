package io.shmring.spark.sidecar;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Puts behind the names of functions why they are left to Spark's own way: explain() shows it there. */
final class LeftToSpark extends AbstractPartialFunction<Expression, Expression> {
  private static final String BEGINS = " [Spark's own way: ";
  private static final Logger LOG = LoggerFactory.getLogger(LeftToSpark.class);
  private static final Set<String> SAID = ConcurrentHashMap.newKeySet();

  private final String why;
  private final Predicate<PythonFuncExpression> which;

  private LeftToSpark(String why, Predicate<PythonFuncExpression> which) {
    this.why = why;
    this.which = which;
  }

  /** The plan whose functions have the reason; empty if there are none that lack one. */
  static Optional<LogicalPlan> marked(
      LogicalPlan plan, String why, Predicate<PythonFuncExpression> which) {
    LogicalPlan marked = plan.transformExpressions(new LeftToSpark(why, which));
    return marked == plan ? Optional.empty() : Optional.of(marked);
  }

  /** Lets the log say it once. */
  static void tell(String what) {
    if (SAID.add(what)) {
      LOG.warn(what);
    }
  }

  @Override
  public boolean isDefinedAt(Expression each) {
    return each instanceof PythonFuncExpression function
        && !function.name().contains(BEGINS)
        && which.test(function);
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
