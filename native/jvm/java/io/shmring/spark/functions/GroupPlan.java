package io.shmring.spark.functions;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.GroupInput;
import io.shmring.spark.request.GroupedSide;
import io.shmring.spark.request.MapAnswers;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature.Side;
import io.shmring.spark.request.Signature.Types;
import io.shmring.spark.request.Signature;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.FlatMapCoGroupsInArrowExec;
import org.apache.spark.sql.execution.python.FlatMapGroupsInArrowExec;
import org.apache.spark.sql.execution.python.PandasGroupUtils;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A function of applyInPandas or applyInArrow, which gets groups, or cogroups of two children. A
 * sidecar may execute functions of applyInArrow, but not of applyInPandas.
 *
 * @param keys grouping keys of each child
 */
record GroupPlan(LogicalPlan plan, PythonUDF function, List<Seq<Attribute>> keys)
    implements FunctionPlan {
  @Override
  public List<PythonUDF> functions() {
    return List.of(function);
  }

  @Override
  public Optional<SparkPlan> ofSidecar(Function<LogicalPlan, SparkPlan> later) {
    return FunctionPlan.sidecar(function).map(call -> ofSidecar(call, later));
  }

  private SparkPlan ofSidecar(SidecarCall call, Function<LogicalPlan, SparkPlan> later) {
    GroupWork groups = new SidecarGroups(call, function, FunctionNode.seq(keys), plan.output());
    sent(groups).forEach(columns -> FunctionPlan.check(call, "applyInArrow", columns));
    FunctionPlan.check(call, "applyInArrow", plan.schema());
    return node(groups, later);
  }

  @Override
  public Optional<String> objection() {
    return sent(ofPython(Option.empty()))
        .flatMap(columns -> SparkTypes.unsupported(columns).stream())
        .findFirst()
        .or(() -> SparkTypes.unsupported(plan.schema()));
  }

  /** Returns, for each child, the types of the columns that are sent. */
  private Stream<StructType> sent(GroupWork groups) {
    return IntStream.range(0, keys.size())
        .mapToObj(i -> groups.side(i, plan.children().apply(i).output()).sent());
  }

  @Override
  public GroupWork ofPython(Option<String> artifacts) {
    return new PythonGroups(
        plan.nodeName() + " over rings",
        function,
        FunctionNode.seq(keys),
        plan.output(),
        artifacts);
  }

  /** Work of a function that gets groups or cogroups; its results replace the input rows. */
  interface GroupWork extends Work {
    PythonUDF function();

    /** Returns the grouping keys of each child. */
    Seq<Seq<Attribute>> keys();

    /**
     * Returns the columns of a child that are sent.
     *
     * @param output the child's columns; if there are two children, Spark has put the grouping keys
     *     first, then all columns of the frame, which may contain the keys again
     */
    GroupedSide side(int child, Seq<Attribute> output);

    default List<GroupedSide> sides(FunctionNode node) {
      return IntStream.range(0, keys().size())
          .mapToObj(i -> side(i, node.children().apply(i).output()))
          .toList();
    }

    // CHANGE: edit this for a new version of Spark
    @Override
    default Optional<SparkPlan> sparks(FunctionNode node) {
      SparkPlan first = node.child();
      return Optional.of(
          node.isOverOne()
              ? new FlatMapGroupsInArrowExec(keys().head(), function(), results(), first)
              : new FlatMapCoGroupsInArrowExec(
                  keys().head(),
                  keys().last(),
                  function(),
                  results(),
                  first,
                  node.children().last()));
    }

    @Override
    default boolean canGiveColumns(FunctionNode node) {
      return true;
    }
  }

  /**
   * @param function the function; if there is only one child, the columns that are sent are the
   *     arguments of the function
   */
  record SidecarGroups(
      SidecarCall call, PythonUDF function, Seq<Seq<Attribute>> keys, Seq<Attribute> results)
      implements GroupWork, Work.OfSidecar {
    /**
     * {@inheritDoc} With one child, the function's arguments are sent, with their names. With two
     * children, all columns of a child are sent except the keys that Spark has put before them.
     */
    @Override
    public GroupedSide side(int child, Seq<Attribute> output) {
      Seq<Attribute> by = keys.apply(child);
      return GroupedSide.of(
          by,
          output,
          keys.size() == 1
              ? CollectionConverters.asJava(function.children())
              : CollectionConverters.asJava(output).subList(by.size(), output.size()));
    }

    @Override
    public Signature signature(FunctionNode node) {
      List<GroupedSide> frames = sides(node);
      StructType output = node.schema();
      ColumnMapping mapping =
          node.conf().pandasGroupedMapAssignColumnsByName()
              ? ColumnMapping.BY_NAME
              : ColumnMapping.BY_PLACE;
      StructType first = frames.get(0).sent();
      StructType input = node.isOverOne() ? first : lists(first, frames.get(1).sent());
      Map<String, String> metadata = Map.of("shmring.group", node.isOverOne() ? "1" : "2");
      return Signature.of(
          List.of(Side.of(input, metadata)),
          Types.of(node.conf()),
          context -> new MapAnswers("applyInArrow", mapping, output, input),
          (rows, handler) -> new GroupInput(rows, frames, (key, group) -> group, true));
    }

    /** Returns the type of a cogroup in a request: one row, with a list of rows per side. */
    private static StructType lists(StructType left, StructType right) {
      return new StructType()
          .add("left", new ArrayType(left, false), false)
          .add("right", new ArrayType(right, false), false);
    }

    @Override
    public List<Object> shown() {
      List<Object> shown = new ArrayList<>(List.of("applyInArrow", call));
      shown.addAll(CollectionConverters.asJava(keys));
      shown.add(results);
      return shown;
    }
  }

  record PythonGroups(
      String name,
      PythonUDF function,
      Seq<Seq<Attribute>> keys,
      Seq<Attribute> results,
      Option<String> artifacts)
      implements GroupWork {
    /** Returns the places of keys and values among the sent columns. */
    private static int[] places(Seq<Attribute> output, Seq<Attribute> by) {
      return PandasGroupUtils.resolveArgOffsets(output, by)._2();
    }

    @Override
    public Call call(FunctionNode node) {
      int[] places =
          IntStream.range(0, keys.size())
              .mapToObj(i -> places(node.children().apply(i).output(), keys.apply(i)))
              .flatMapToInt(IntStream::of)
              .toArray();
      return PythonCalls.ofFrames(function, places, artifacts, node.whenMade);
    }

    /** {@inheritDoc} They are the columns that Spark's own node would send. */
    @Override
    public GroupedSide side(int child, Seq<Attribute> output) {
      Seq<Attribute> by = keys.apply(child);
      return GroupedSide.of(
          by,
          output,
          CollectionConverters.asJava(PandasGroupUtils.resolveArgOffsets(output, by)._1()));
    }

    @Override
    public Signature signature(FunctionNode node) {
      List<GroupedSide> frames = sides(node);
      StructType first = frames.get(0).sent();
      StructType output = node.schema();
      return Signature.of(
          frames.stream().map(frame -> Side.of(frame.sent(), Map.of())).toList(),
          node.whenMade.types(),
          context -> new MapAnswers.OfPython(output, first, Optional.empty()),
          (rows, handler) -> new GroupInput(rows, frames, (key, group) -> group, false));
    }
  }
}
