package io.shmring.spark.functions;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.functions.PythonCalls.Settings;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.MapAnswers;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature.Answers;
import io.shmring.spark.request.Signature.Types;
import io.shmring.spark.request.Signature;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;

/** A function of mapInPandas or mapInArrow; a sidecar may execute functions of mapInArrow. */
record MapPlan(
    LogicalPlan plan, PythonUDF function, boolean isBarrier, Option<ResourceProfile> profile)
    implements FunctionPlan {
  @Override
  public List<PythonUDF> functions() {
    return List.of(function);
  }

  /**
   * {@inheritDoc} If the JVM cannot send the batches to the sidecar, Spark's Python workers send
   * them.
   */
  @Override
  public Optional<SparkPlan> ofSidecar(Function<LogicalPlan, SparkPlan> later) {
    return FunctionPlan.sidecar(function).flatMap(call -> ofSidecar(call, later));
  }

  private Optional<SparkPlan> ofSidecar(
      SidecarCall call, Function<LogicalPlan, SparkPlan> later) {
    Optional<String> objection =
        profile.isDefined() ? Optional.of("it has a resource profile") : objection();
    if (objection.isEmpty()) {
      return Optional.of(node(new SidecarMap(call, function, plan.output(), isBarrier), later));
    }
    Optional<LogicalPlan> marked = LeftToSpark.marked(plan, objection.get(), each -> true);
    marked.ifPresent(
        each ->
            LeftToSpark.tell(
                String.format(
                    "Spark's Python workers send mapInArrow's batches to sidecar \"%s\": %s",
                    call.sidecar(), objection.get())));
    return marked.map(later);
  }

  @Override
  public Optional<String> objection() {
    return SparkTypes.unsupported(plan.children().head().schema())
        .or(() -> SparkTypes.unsupported(plan.schema()));
  }

  @Override
  public Work ofPython(Option<String> artifacts) {
    return new PythonMap(
        plan.nodeName() + " over rings", function, plan.output(), isBarrier, profile, artifacts);
  }

  /** Work of a function of batches: the child's rows are sent, and the answers replace them. */
  private interface MapWork extends Work {
    default Signature signature(FunctionNode node, Answers answers) {
      return Signature.of(node.child().schema(), Types.of(node.conf()), answers, Input::ofStage);
    }

    @Override
    default boolean sendsColumns(FunctionNode node) {
      return true;
    }

    @Override
    default Optional<Seq<Expression>> computed(FunctionNode node) {
      return Optional.of(FunctionNode.seq(List.of()));
    }

    @Override
    default boolean canGiveColumns(FunctionNode node) {
      return true;
    }
  }

  record SidecarMap(
      SidecarCall call, PythonUDF function, Seq<Attribute> results, boolean isBarrier)
      implements MapWork, Work.OfSidecar {
    @Override
    public Signature signature(FunctionNode node) {
      StructType input = node.child().schema();
      StructType output = node.schema();
      return signature(
          node,
          context -> new MapAnswers("mapInArrow", ColumnMapping.BY_PLACE, output, input));
    }

    @Override
    public List<Object> shown() {
      return List.of("mapInArrow", call, results);
    }
  }

  record PythonMap(
      String name,
      PythonUDF function,
      Seq<Attribute> results,
      boolean isBarrier,
      Option<ResourceProfile> profile,
      Option<String> artifacts)
      implements MapWork {
    @Override
    public Call call(FunctionNode node) {
      return PythonCalls.ofFrames(function, new int[] {0}, artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(FunctionNode node) {
      StructType input = node.child().schema();
      StructType output = node.schema();
      int evalType = function.evalType();
      DataType declared = function.dataType();
      return signature(
          node,
          context ->
              new MapAnswers.OfPython(
                  output, input, Optional.of(new MapAnswers.Declared(evalType, declared))));
    }
  }
}
