package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.sidecar.SidecarNodes.SidecarGroups;
import io.shmring.spark.sidecar.SidecarNodes.SidecarMap;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapCoGroupsInArrow;
import org.apache.spark.sql.catalyst.plans.logical.FlatMapGroupsInArrow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MapInArrow;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

// CHANGE: a new kind of Python function
/**
 * Plans what takes shmring.spark.through(...), and shmring's UDFs, so that no Python worker takes part.
 * Spark plans what it leaves alone: its Python workers then ask the sidecar for mapInArrow.
 */
public final class SidecarStrategy extends SparkStrategy {
  /** Set to false, all is left alone. */
  static final String DIRECT = "spark.shmring.direct";

  @Override
  public Seq<SparkPlan> apply(LogicalPlan plan) {
    Optional<SparkPlan> planned = Optional.empty();
    if (plan instanceof MapInArrow map && isWanted()) {
      planned = planMap(map);
    } else if (plan instanceof FlatMapGroupsInArrow map && isWanted()) {
      planned =
          planGroups(
              map.functionExpr(),
              PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF(),
              List.of(map.groupingAttributes()),
              map);
    } else if (plan instanceof FlatMapCoGroupsInArrow map && isWanted()) {
      planned =
          planGroups(
              map.functionExpr(),
              PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF(),
              List.of(map.leftAttributes(), map.rightAttributes()),
              map);
    } else if (plan instanceof ArrowEvalPython eval && isWanted()) {
      planned = plan(eval);
    }
    return SidecarNode.seq(planned.stream().toList());
  }

  static boolean isWanted() {
    return Boolean.parseBoolean(SQLConf.get().getConfString(DIRECT, "true"));
  }

  private Optional<SparkPlan> planMap(MapInArrow map) {
    Optional<SidecarCall> call =
        called(map.functionExpr(), PythonEvalType.SQL_MAP_ARROW_ITER_UDF());
    if (call.isEmpty()) {
      return Optional.empty();
    }
    Optional<String> objection =
        map.profile().isDefined()
            ? Optional.of("it has a resource profile")
            : SparkTypes.unsupported(map.child().schema())
                .or(() -> SparkTypes.unsupported(map.schema()));
    if (objection.isEmpty()) {
      return Optional.of(
          new SidecarNode(
              new SidecarMap(call.get(), map.output(), map.isBarrier()),
              List.of(planLater(map.child()))));
    }
    Optional<LogicalPlan> marked = LeftToSpark.marked(map, objection.get(), each -> true);
    marked.ifPresent(
        plan ->
            LeftToSpark.tell(
                String.format(
                    "Spark's Python workers send mapInArrow's batches to sidecar \"%s\": %s",
                    call.get().sidecar(), objection.get())));
    return marked.map(this::planLater);
  }

  /** What a function of this type asks a sidecar for; empty if it is somebody else's. */
  private static Optional<SidecarCall> called(Expression function, int type) {
    return function instanceof PythonUDF udf && udf.evalType() == type
        ? SidecarCall.of(udf)
        : Optional.empty();
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

  private Optional<SparkPlan> planGroups(
      Expression function, int type, List<Seq<Attribute>> keys, LogicalPlan map) {
    return called(function, type)
        .map(
            call -> {
              SidecarGroups groups =
                  new SidecarGroups(
                      call, (PythonUDF) function, SidecarNode.seq(keys), map.output());
              for (int i = 0; i < keys.size(); i++) {
                check(call, "applyInArrow", groups.side(i, map.children().apply(i).output()).sent());
              }
              check(call, "applyInArrow", map.schema());
              return new SidecarNode(
                  groups,
                  CollectionConverters.asJava(map.children()).stream()
                      .map(this::planLater)
                      .toList());
            });
  }

  /** What lies below is taken along while it is UDFs of sidecars, too. */
  private Optional<SparkPlan> plan(ArrowEvalPython eval) {
    Deque<ArrowEvalPython> evals = new ArrayDeque<>(); // the lowest first
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

  /** Spark leaves out between two UDFs the columns that only the first one takes. */
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
}
