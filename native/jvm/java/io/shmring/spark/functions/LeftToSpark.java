package io.shmring.spark.functions;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.internal.SQLConf;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.PartialFunction$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Marks functions that are left to Spark: appends the reason to the function's name, which
 * explain() shows. shmring.spark.status() in Python calls the public methods.
 */
public final class LeftToSpark {
  private static final String BEGINS = " [Spark's own way: ";
  private static final Logger LOG = LoggerFactory.getLogger(LeftToSpark.class);
  private static final Set<String> SAID = ConcurrentHashMap.newKeySet();

  private LeftToSpark() {}

  /**
   * Returns the plan with the reason appended to its functions' names; empty if every name has a
   * reason already.
   */
  static Optional<LogicalPlan> marked(
      LogicalPlan plan, String why, Predicate<PythonFuncExpression> which) {
    LogicalPlan marked =
        plan.transformExpressions(
            PartialFunction$.MODULE$.fromFunction(
                each ->
                    each instanceof PythonFuncExpression function
                            && !function.name().contains(BEGINS)
                            && which.test(function)
                        ? named(each, function.name() + BEGINS + why + "]")
                        : each));
    return marked == plan ? Optional.empty() : Optional.of(marked);
  }

  private static Expression named(Expression function, String name) {
    List<Object> elements = new ArrayList<>();
    CollectionConverters.asJava(function.productIterator()).forEachRemaining(elements::add);
    elements.set(0, name);
    return function.makeCopy(elements.toArray());
  }

  /** Returns why no function of a session can go over rings; empty if functions can. */
  public static List<String> obstacles(SQLConf conf) {
    return PythonCalls.objection(conf).stream().toList();
  }

  /** Returns the warnings that were logged. */
  public static List<String> told() {
    return List.copyOf(SAID);
  }

  public static String version() {
    return LeftToSpark.class.getPackage().getImplementationVersion();
  }

  /** Logs a warning, once for each text. */
  static void tell(String what) {
    if (SAID.add(what)) {
      LOG.warn(what);
    }
  }
}
