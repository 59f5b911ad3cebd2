package io.shmring.spark.functions;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.FunctionKind.Trait;
import io.shmring.spark.request.FunctionKind;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPythonUDTF;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapCoGroupsInArrow;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapCoGroupsInPandas;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapGroupsInArrow;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapGroupsInPandas;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.MapInPandas;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A logical plan that may call Python functions. Each implementation serves one or several classes
 * of Spark's plans. Each file of an implementation also contains the {@link Work} of the node that
 * replaces the plan: one record for Python workers, and another one if a sidecar may execute the
 * functions.
 */
interface FunctionPlan {
  // CHANGE: edit this for a new kind of Python function
  /** Table of Spark's plan classes that call functions. No other code lists these classes. */
  List<Row<?>> ROWS =
      List.of(
          new Row<>(ArrowEvalPython.class, UdfPlan::new),
          new Row<>(ArrowEvalPythonUDTF.class, UdtfPlan::new),
          new Row<>(
              MapInArrow.class,
              map -> new MapPlan(map, function(map), map.isBarrier(), map.profile())),
          new Row<>(
              MapInPandas.class,
              map -> new MapPlan(map, function(map), map.isBarrier(), map.profile())),
          new Row<>(
              FlatMapGroupsInArrow.class,
              map -> new GroupPlan(map, function(map), List.of(map.groupingAttributes()))),
          new Row<>(
              FlatMapGroupsInPandas.class,
              map -> new GroupPlan(map, function(map), List.of(map.groupingAttributes()))),
          new Row<>(
              FlatMapCoGroupsInArrow.class,
              map ->
                  new GroupPlan(
                      map, function(map), List.of(map.leftAttributes(), map.rightAttributes()))),
          new Row<>(
              FlatMapCoGroupsInPandas.class,
              map ->
                  new GroupPlan(
                      map, function(map), List.of(map.leftAttributes(), map.rightAttributes()))),
          new Row<>(Aggregate.class, AggregatePlan::new),
          new Row<>(Window.class, WindowPlan::new));

  /**
   * One class of Spark's plans, and the implementation of FunctionPlan that serves it.
   *
   * @param plans the class
   * @param functions a function that wraps a plan of the class
   */
  record Row<P extends LogicalPlan>(Class<P> plans, Function<P, FunctionPlan> functions) {
    Optional<FunctionPlan> of(LogicalPlan plan) {
      return Optional.of(plan).filter(plans::isInstance).map(plans::cast).map(functions);
    }
  }

  /** Wraps a plan in the implementation for its class; empty if the class is left to Spark. */
  static Optional<FunctionPlan> of(LogicalPlan plan) {
    return ROWS.stream().flatMap(row -> row.of(plan).stream()).findFirst();
  }

  /**
   * Returns the Python function of a plan that calls exactly one, with batches, groups or cogroups.
   */
  private static PythonUDF function(LogicalPlan plan) {
    return CollectionConverters.asJava(plan.expressions()).stream()
        .filter(PythonUDF.class::isInstance)
        .map(PythonUDF.class::cast)
        .findFirst()
        .orElseThrow();
  }

  LogicalPlan plan();

  /**
   * Returns the Python functions that the plan calls. Call {@link #isSparks} first: if it returns
   * false, the plan calls at least one Python function, and no other aggregates or windows.
   */
  List<? extends PythonFuncExpression> functions();

  /**
   * Whether the plan is left to Spark's planner, which plans it or refuses it with an error of its
   * own.
   */
  default boolean isSparks() {
    return false;
  }

  /**
   * Plans the functions if a sidecar executes them.
   *
   * @param later a function that lets Spark plan a child
   */
  default Optional<SparkPlan> ofSidecar(Function<LogicalPlan, SparkPlan> later) {
    return Optional.empty();
  }

  /** Returns why Python workers cannot execute the functions over rings; empty if they can. */
  default Optional<String> objection() {
    return PythonCalls.objection(functions());
  }

  /**
   * Returns the work of a node whose functions are executed by Python workers.
   *
   * @param artifacts the uuid of the query's artifacts in Spark Connect
   */
  Work ofPython(Option<String> artifacts);

  /**
   * Plans the functions over rings in Python workers; {@link #objection} must have returned empty.
   */
  default SparkPlan overRings(Option<String> artifacts, Function<LogicalPlan, SparkPlan> later) {
    return node(ofPython(artifacts), later);
  }

  default SparkPlan node(Work work, Function<LogicalPlan, SparkPlan> later) {
    return FunctionNode.of(
        work, CollectionConverters.asJava(plan().children()).stream().map(later).toList());
  }

  /** Returns the sidecar call that a function of batches or groups makes, if it makes one. */
  static Optional<SidecarCall> sidecar(PythonUDF function) {
    return mayBeSidecars(function.evalType()) ? SidecarCall.of(function) : Optional.empty();
  }

  static boolean mayBeSidecars(int evalType) {
    return FunctionKind.of(evalType).filter(kind -> kind.has(Trait.MAY_BE_SIDECARS)).isPresent();
  }

  /** Refuses columns that no sidecar can take or give. */
  static void check(SidecarCall call, String method, StructType... columns) {
    for (StructType each : columns) {
      SparkTypes.unsupported(each)
          .ifPresent(
              which -> {
                throw new IllegalArgumentException(
                    String.format(
                        "sidecar \"%s\": %s cannot have %s; cast it, or leave it out",
                        call.sidecar(), method, which));
              });
    }
  }
}
