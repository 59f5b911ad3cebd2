package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.UdfSignature;
import io.shmring.spark.sidecar.SidecarNode.Work;
import io.shmring.spark.sidecar.SidecarNodes.PythonAggregates;
import io.shmring.spark.sidecar.SidecarNodes.PythonGroups;
import io.shmring.spark.sidecar.SidecarNodes.PythonMap;
import io.shmring.spark.sidecar.SidecarNodes.PythonUdfs;
import io.shmring.spark.sidecar.SidecarNodes.PythonUdtf;
import io.shmring.spark.sidecar.SidecarNodes.PythonWindows;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDAF;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SessionWindow;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.planning.PhysicalAggregation;
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
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import scala.Option;
import scala.Tuple4;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

// CHANGE: a new kind of Python function
/**
 * Plans functions that are no sidecar's, for Spark's own Python workers with their batches over rings.
 * Of those that are left to Spark's way it puts the reason behind the name, where explain() shows it.
 */
public final class PythonStrategy extends SparkStrategy {
  private static final Set<Integer> WINDOW_TYPES =
      Set.of(
          PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF(), PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF());

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    Optional<SparkPlan> planned = Optional.empty();
    if (PythonCalls.areWanted() && SidecarStrategy.isWanted() && !isRefused(plan)) {
      Optional<String> why = PythonCalls.objection().or(() -> objection(plan));
      Optional<LogicalPlan> marked =
          LeftToSpark.marked(plan, why.orElse(""), PythonStrategy::isNobodys);
      if (marked.isPresent()) {
        why.ifPresent(PythonCalls::tell);
        planned = Optional.of(why.isPresent() ? planLater(marked.get()) : overRings(plan));
      }
    }
    return SidecarNode.seq(planned.stream().toList());
  }

  /**
   * Whether it is an aggregate, or a window, of others than Python's: Spark refuses a mixture by their
   * names, and for windows kinds beside each other, and iterators.
   */
  private static boolean isRefused(LogicalPlan plan) {
    if (plan instanceof Window window) {
      List<PythonFuncExpression> functions =
          PythonWindows.functions(window.windowExpressions());
      return functions.size() < window.windowExpressions().size()
          || functions.stream().map(PythonFuncExpression::evalType).distinct().count() > 1
          || !WINDOW_TYPES.contains(functions.get(0).evalType());
    }
    if (!(plan instanceof Aggregate) || plan.isStreaming()) {
      return plan instanceof Aggregate;
    }
    List<AggregateExpression> aggregates = CollectionConverters.asJava(aggregation(plan)._2());
    return aggregates.isEmpty()
        || aggregates.stream().anyMatch(each -> !(each.aggregateFunction() instanceof PythonUDAF));
  }

  /** Keys, aggregates, what is made of both, and the child. */
  private static Tuple4<
          Seq<NamedExpression>, Seq<AggregateExpression>, Seq<NamedExpression>, LogicalPlan>
      aggregation(LogicalPlan plan) {
    return PhysicalAggregation.unapply(plan).get();
  }

  /** Whether it is no sidecar's. */
  private static boolean isNobodys(PythonFuncExpression function) {
    return !(function instanceof PythonUDF udf
        && (SidecarCall.of(udf).isPresent() || UdfCall.of(udf).isPresent()));
  }

  private static Optional<String> objection(LogicalPlan plan) {
    if (plan instanceof Aggregate) {
      var parts = aggregation(plan);
      boolean isOfSessions =
          CollectionConverters.asJava(parts._1()).stream()
              .anyMatch(key -> key.metadata().contains(SessionWindow.marker()));
      return isOfSessions
          ? Optional.of("it is of session windows")
          : PythonCalls.objection(PythonAggregates.functions(parts._2()));
    }
    if (plan instanceof Window window) {
      return PythonCalls.objection(PythonWindows.functions(window.windowExpressions()))
          .or(() -> SparkTypes.unsupported(UdfSignature.types(window.partitionSpec())));
    }
    if (plan instanceof ArrowEvalPython eval) {
      return PythonCalls.objectionToUdfs()
          .or(() -> PythonCalls.objection(CollectionConverters.asJava(eval.udfs())));
    }
    if (plan instanceof ArrowEvalPythonUDTF eval) {
      return PythonCalls.objection(List.of(eval.udtf()));
    }
    List<Seq<Attribute>> keys = keys(plan);
    if (!keys.isEmpty()) {
      List<LogicalPlan> children = CollectionConverters.asJava(plan.children());
      return IntStream.range(0, keys.size())
          .mapToObj(i -> PythonGroups.side(keys.get(i), children.get(i).output()))
          .flatMap(side -> SparkTypes.unsupported(side.sent()).stream())
          .findFirst()
          .or(() -> SparkTypes.unsupported(plan.schema()));
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
    Option<String> artifacts = PythonCalls.artifacts();
    if (plan instanceof Aggregate) {
      var parts = aggregation(plan);
      return new ProjectExec(
          parts._3(),
          new SidecarNode(
              new PythonAggregates(parts._1(), parts._2(), artifacts),
              List.of(planLater(parts._4()))));
    }
    return new SidecarNode(
        work(plan, artifacts),
        CollectionConverters.asJava(plan.children()).stream().map(this::planLater).toList());
  }

  private static Work work(LogicalPlan plan, Option<String> artifacts) {
    if (plan instanceof Window window) {
      return new PythonWindows(
          window.windowExpressions(), window.partitionSpec(), window.orderSpec(), artifacts);
    }
    if (plan instanceof ArrowEvalPython eval) {
      return new PythonUdfs(eval.udfs(), eval.resultAttrs(), artifacts);
    }
    if (plan instanceof ArrowEvalPythonUDTF eval) {
      return new PythonUdtf(
          eval.udtf(), eval.requiredChildOutput(), eval.resultAttrs(), artifacts);
    }
    PythonUDF function =
        CollectionConverters.asJava(plan.expressions()).stream()
            .filter(PythonUDF.class::isInstance)
            .map(PythonUDF.class::cast)
            .findFirst()
            .orElseThrow();
    String name = plan.nodeName() + " over rings";
    List<Seq<Attribute>> keys = keys(plan);
    if (!keys.isEmpty()) {
      return new PythonGroups(name, function, SidecarNode.seq(keys), plan.output(), artifacts);
    }
    boolean isBarrier =
        plan instanceof MapInArrow arrow ? arrow.isBarrier() : ((MapInPandas) plan).isBarrier();
    return new PythonMap(name, function, plan.output(), isBarrier, artifacts);
  }

  /** Of each child of a function of groups or cogroups; none for other plans. */
  private static List<Seq<Attribute>> keys(LogicalPlan plan) {
    if (plan instanceof FlatMapGroupsInArrow map) {
      return List.of(map.groupingAttributes());
    }
    if (plan instanceof FlatMapGroupsInPandas map) {
      return List.of(map.groupingAttributes());
    }
    if (plan instanceof FlatMapCoGroupsInArrow map) {
      return List.of(map.leftAttributes(), map.rightAttributes());
    }
    return plan instanceof FlatMapCoGroupsInPandas map
        ? List.of(map.leftAttributes(), map.rightAttributes())
        : List.of();
  }
}
