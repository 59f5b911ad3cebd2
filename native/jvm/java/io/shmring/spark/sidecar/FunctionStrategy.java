package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.FunctionKind.Trait;
import io.shmring.spark.request.FunctionKind;
import io.shmring.spark.request.UdfAnswers;
import io.shmring.spark.sidecar.SidecarNode.Work;
import io.shmring.spark.sidecar.SidecarNodes.Groups;
import io.shmring.spark.sidecar.SidecarNodes.Mapping;
import io.shmring.spark.sidecar.SidecarNodes.PythonAggregates;
import io.shmring.spark.sidecar.SidecarNodes.PythonUdfs;
import io.shmring.spark.sidecar.SidecarNodes.PythonUdtf;
import io.shmring.spark.sidecar.SidecarNodes.PythonWindows;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
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
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple4;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

// CHANGE: edit this for a new kind of Python function
/**
 * Plans two kinds of functions: calls of a sidecar (shmring.spark.through(...) and shmring's UDFs),
 * which the JVM makes without a Python worker, and ordinary Python functions, which Spark's workers
 * execute with batches over rings. Everything else is left to Spark's planner. If a mapInArrow of a
 * sidecar is left to Spark, Spark's Python workers ask the sidecar. The reason is appended to the
 * functions' names, where explain() shows it.
 */
public final class FunctionStrategy extends SparkStrategy {
  /** Setting: if false, all plans are left to Spark's planner. */
  static final String DIRECT = "spark.shmring.direct";

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    boolean isWanted = Boolean.parseBoolean(SQLConf.get().getConfString(DIRECT, "true"));
    Optional<SparkPlan> planned =
        isWanted ? ofSidecar(plan).or(() -> ofPython(plan)) : Optional.empty();
    return SidecarNode.seq(planned.stream().toList());
  }

  // --- functions of sidecars --------------------------------------------------------------------

  private Optional<SparkPlan> ofSidecar(LogicalPlan plan) {
    if (plan instanceof ArrowEvalPython eval) {
      return ofUdfs(eval);
    }
    if (plan instanceof MapInArrow map) {
      return called(map, PythonEvalType.SQL_MAP_ARROW_ITER_UDF()).flatMap(call -> ofMap(call, map));
    }
    int type =
        keys(plan).size() == 1
            ? PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF()
            : PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF();
    return keys(plan).isEmpty()
        ? Optional.empty()
        : called(plan, type).map(call -> ofGroups(call, plan));
  }

  /** Returns the sidecar call of a plan's function of this type; empty if it calls no sidecar. */
  private static Optional<SidecarCall> called(LogicalPlan plan, int type) {
    PythonUDF function = function(plan);
    return function.evalType() == type ? SidecarCall.of(function) : Optional.empty();
  }

  private Optional<SparkPlan> ofMap(SidecarCall call, MapInArrow map) {
    Optional<String> objection =
        map.profile().isDefined()
            ? Optional.of("it has a resource profile")
            : objectionToMap(map);
    if (objection.isEmpty()) {
      return Optional.of(node(work(map, Option.empty()), map));
    }
    Optional<LogicalPlan> marked = LeftToSpark.marked(map, objection.get(), each -> true);
    marked.ifPresent(
        plan ->
            LeftToSpark.tell(
                String.format(
                    "Spark's Python workers send mapInArrow's batches to sidecar \"%s\": %s",
                    call.sidecar(), objection.get())));
    return marked.map(this::planLater);
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

  private SparkPlan ofGroups(SidecarCall call, LogicalPlan map) {
    Groups groups = (Groups) work(map, Option.empty());
    for (int i = 0; i < groups.keys().size(); i++) {
      check(call, "applyInArrow", groups.side(i, map.children().apply(i).output()).sent());
    }
    check(call, "applyInArrow", map.schema());
    return node(groups, map);
  }

  /** Plans UDFs of sidecars, together with the UDFs of sidecars directly below them. */
  private Optional<SparkPlan> ofUdfs(ArrowEvalPython eval) {
    Deque<ArrowEvalPython> evals = new ArrayDeque<>(); // from the lowest to the highest
    LogicalPlan below = eval;
    while (source(below) instanceof ArrowEvalPython each && isOurs(each)) {
      evals.push(each);
      below = each.child();
    }
    if (evals.isEmpty()) {
      return Optional.empty();
    }
    UdfSteps steps = new UdfSteps();
    for (ArrowEvalPython each : evals) {
      for (int i = 0; i < each.udfs().size(); i++) {
        steps.add(each.udfs().apply(i), each.resultAttrs().apply(i));
      }
    }
    List<Attribute> wanted = CollectionConverters.asJava(eval.output());
    SparkPlan planned = steps.over(planLater(below), wanted);
    return Optional.of(
        CollectionConverters.asJava(planned.output()).equals(wanted)
            ? planned
            : new ProjectExec(
                SidecarNode.seq(List.<NamedExpression>copyOf(wanted)),
                planned));
  }

  /**
   * Returns the plan below a projection of mere columns, which Spark puts between two UDFs to drop
   * the columns that only the lower UDF takes.
   */
  private static LogicalPlan source(LogicalPlan plan) {
    return plan instanceof Project project
            && CollectionConverters.asJava(project.projectList()).stream()
                .allMatch(Attribute.class::isInstance)
        ? project.child()
        : plan;
  }

  private static boolean isOurs(ArrowEvalPython eval) {
    return eval.evalType() == PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF()
        && CollectionConverters.asJava(eval.udfs()).stream().allMatch(UdfSteps::isOurs);
  }

  // --- functions of Spark's own workers ---------------------------------------------------------

  private Optional<SparkPlan> ofPython(LogicalPlan plan) {
    if (!PythonCalls.areWanted() || isRefused(plan)) {
      return Optional.empty();
    }
    Optional<String> why = PythonCalls.objection().or(() -> objection(plan));
    Optional<LogicalPlan> marked =
        LeftToSpark.marked(plan, why.orElse(""), FunctionStrategy::isNobodys);
    marked.ifPresent(each -> why.ifPresent(PythonCalls::tell));
    return marked.map(each -> why.isPresent() ? planLater(each) : overRings(plan));
  }

  /**
   * Whether a plan is an aggregate or a window that is left to Spark. Spark executes functions that
   * are not Python's. Spark refuses mixtures of Python's and other functions and, in windows,
   * several kinds of functions or iterators; its error names the functions.
   */
  private static boolean isRefused(LogicalPlan plan) {
    if (plan instanceof Window window) {
      List<PythonFuncExpression> functions =
          PythonWindows.functions(window.windowExpressions());
      return functions.size() < window.windowExpressions().size()
          || functions.stream().map(PythonFuncExpression::evalType).distinct().count() > 1
          || FunctionKind.of(functions.get(0).evalType())
              .filter(kind -> kind.has(Trait.GOES_OVER_WINDOWS))
              .isEmpty();
    }
    if (!(plan instanceof Aggregate) || plan.isStreaming()) {
      return plan instanceof Aggregate;
    }
    List<AggregateExpression> aggregates = CollectionConverters.asJava(aggregation(plan)._2());
    return aggregates.isEmpty()
        || aggregates.stream().anyMatch(each -> !(each.aggregateFunction() instanceof PythonUDAF));
  }

  /** Returns an aggregate's keys, aggregates, results computed from both, and child. */
  private static Tuple4<
          Seq<NamedExpression>, Seq<AggregateExpression>, Seq<NamedExpression>, LogicalPlan>
      aggregation(LogicalPlan plan) {
    return PhysicalAggregation.unapply(plan).get();
  }

  /** Whether a function calls no sidecar. */
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
          .or(() -> SparkTypes.unsupported(UdfAnswers.types(window.partitionSpec())));
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
      Groups groups = (Groups) work(plan, Option.empty());
      return IntStream.range(0, keys.size())
          .mapToObj(i -> groups.side(i, plan.children().apply(i).output()))
          .flatMap(side -> SparkTypes.unsupported(side.sent()).stream())
          .findFirst()
          .or(() -> SparkTypes.unsupported(plan.schema()));
    }
    return plan instanceof MapInArrow || plan instanceof MapInPandas
        ? objectionToMap(plan)
        : Optional.of("functions of this kind are not taken");
  }

  private static Optional<String> objectionToMap(LogicalPlan map) {
    return SparkTypes.unsupported(map.children().head().schema())
        .or(() -> SparkTypes.unsupported(map.schema()));
  }

  /** Plans functions over rings, after {@link #objection} has found no reason against it. */
  private SparkPlan overRings(LogicalPlan plan) {
    Option<String> artifacts = PythonCalls.artifacts();
    if (plan instanceof Aggregate) {
      var parts = aggregation(plan);
      return new ProjectExec(
          parts._3(),
          SidecarNode.of(
              new PythonAggregates(parts._1(), parts._2(), artifacts),
              List.of(planLater(parts._4()))));
    }
    return node(work(plan, artifacts), plan);
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
    PythonUDF function = function(plan);
    String name =
        SidecarCall.of(function)
            .map(SidecarCall::nodeName)
            .orElse(plan.nodeName() + " over rings");
    List<Seq<Attribute>> keys = keys(plan);
    if (!keys.isEmpty()) {
      return new Groups(name, function, SidecarNode.seq(keys), plan.output(), artifacts);
    }
    boolean isBarrier =
        plan instanceof MapInArrow arrow ? arrow.isBarrier() : ((MapInPandas) plan).isBarrier();
    Option<ResourceProfile> profile =
        plan instanceof MapInArrow arrow ? arrow.profile() : ((MapInPandas) plan).profile();
    return new Mapping(name, function, plan.output(), isBarrier, profile, artifacts);
  }

  // --- functions of both kinds ------------------------------------------------------------------

  private SidecarNode node(Work work, LogicalPlan plan) {
    return SidecarNode.of(
        work, CollectionConverters.asJava(plan.children()).stream().map(this::planLater).toList());
  }

  /** Returns the only function of a plan that calls it with batches, groups or cogroups. */
  private static PythonUDF function(LogicalPlan plan) {
    return CollectionConverters.asJava(plan.expressions()).stream()
        .filter(PythonUDF.class::isInstance)
        .map(PythonUDF.class::cast)
        .findFirst()
        .orElseThrow();
  }

  /** Returns the keys of each child of a function of groups or cogroups; empty for other plans. */
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
