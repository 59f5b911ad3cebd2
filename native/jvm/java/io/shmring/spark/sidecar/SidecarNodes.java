package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.ColumnsThenRows;
import io.shmring.spark.request.FunctionKind.Trait;
import io.shmring.spark.request.FunctionKind;
import io.shmring.spark.request.Groups.FrameInput;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.MapAnswers;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.Signature.Side;
import io.shmring.spark.request.Signature.Types;
import io.shmring.spark.request.UdfAnswers;
import io.shmring.spark.request.Windows;
import io.shmring.spark.sidecar.PythonCalls.Settings;
import io.shmring.spark.sidecar.SidecarNode.Work;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.PythonUDTF;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.WindowFunctionType;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.ArrowAggregatePythonExec;
import org.apache.spark.sql.execution.python.ArrowWindowPythonExec;
import org.apache.spark.sql.execution.python.FlatMapCoGroupsInArrowExec;
import org.apache.spark.sql.execution.python.FlatMapGroupsInArrowExec;
import org.apache.spark.sql.execution.python.PandasGroupUtils;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

// CHANGE: edit this for a new kind of Python function
/**
 * Contains the kinds of work of nodes over rings. Sidecars and Spark's own Python workers execute
 * functions of batches, UDFs and functions of groups; only the workers execute UDTFs and aggregates
 * of groups and windows. `artifacts` is the uuid of the query's artifacts in Spark Connect.
 */
final class SidecarNodes {
  private SidecarNodes() {}

  /**
   * Work of mapInPandas, or of mapInArrow by a Python worker or a sidecar: the child's rows are
   * sent, and the answer's rows replace them.
   */
  record Mapping(
      String name,
      PythonUDF function,
      Seq<Attribute> results,
      boolean isBarrier,
      Option<ResourceProfile> profile,
      Option<String> artifacts)
      implements Work {
    @Override
    public Call call(SidecarNode node) {
      Optional<SidecarCall> sidecar = SidecarCall.of(function);
      return sidecar.isPresent()
          ? sidecar.get()
          : PythonCalls.ofFrames(function, new int[] {0}, artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(SidecarNode node) {
      StructType input = node.child().schema();
      StructType output = node.schema();
      int evalType = function.evalType();
      DataType declared = function.dataType();
      return Signature.of(
          input,
          Types.of(node.conf()),
          SidecarCall.of(function).isPresent()
              ? partition -> new MapAnswers("mapInArrow", ColumnMapping.BY_PLACE, output, input)
              : partition ->
                  new MapAnswers.OfPython(
                      output, input, Optional.of(new MapAnswers.Declared(evalType, declared))),
          Input::ofStage);
    }

    @Override
    public boolean sendsColumns(SidecarNode node) {
      return true;
    }

    @Override
    public Optional<Seq<Expression>> computed(SidecarNode node) {
      return Optional.of(SidecarNode.seq(List.of()));
    }

    @Override
    public boolean canGiveColumns(SidecarNode node) {
      return true;
    }

    @Override
    public List<Object> shown() {
      return SidecarCall.of(function)
          .map(call -> List.of("mapInArrow", call, results))
          .orElseGet(Work.super::shown);
    }
  }

  /** Work of UDFs: the output is the child's columns with the results beside them. */
  interface Udfs extends Work {
    /** Returns the distinct arguments of all UDFs. */
    List<Expression> sent();

    @Override
    default Seq<Attribute> beside(SidecarNode node) {
      return node.child().output();
    }

    @Override
    default boolean keepsOrder() {
      return true;
    }

    @Override
    default boolean sendsColumns(SidecarNode node) {
      return writesColumns(node) && arguments().isEmpty();
    }

    /** Whether all columns of the child can wait in vectors for the results. */
    default boolean writesColumns(SidecarNode node) {
      return SparkTypes.unsupported(UdfAnswers.types(node.child().output())).isEmpty();
    }

    /**
     * Returns the arguments if a stage's code may compute them. They must be deterministic, because
     * Spark seeds random numbers differently: in an argument by the task, in a stage by the
     * partition.
     */
    @Override
    default Optional<Seq<Expression>> computed(SidecarNode node) {
      return writesColumns(node)
              && arguments().stream().allMatch(Expression::deterministic)
              && BatchSizes.areKnown(UdfAnswers.types(SidecarNode.seq(arguments())))
          ? Optional.of(SidecarNode.seq(arguments()))
          : Optional.empty();
    }

    /** Returns the sent expressions that are not columns of the child. */
    private List<Expression> arguments() {
      return sent().stream().filter(each -> !(each instanceof Attribute)).toList();
    }

    /**
     * Returns the places of the sent expressions in the vectors, which have the child's columns
     * first, then the computed arguments.
     */
    private List<Integer> places(SidecarNode node) {
      List<ExprId> columns =
          CollectionConverters.asJava(node.child().output()).stream()
              .map(Attribute::exprId)
              .toList();
      return sent().stream()
          .map(
              each ->
                  each instanceof Attribute column
                      ? columns.indexOf(column.exprId())
                      : columns.size() + arguments().indexOf(each))
          .toList();
    }

    /**
     * @param metadata metadata of a sidecar's requests; empty if a Python worker answers
     * @param lags whether results may come only after all requests
     */
    default Signature signature(
        SidecarNode node, Types types, Map<String, String> metadata, boolean lags) {
      boolean isOfSidecar = !metadata.isEmpty();
      Seq<Expression> arguments = SidecarNode.seq(sent());
      Seq<Attribute> input = node.child().output();
      StructType rows = node.child().schema();
      StructType sent = UdfAnswers.types(arguments);
      StructType results = UdfAnswers.types(results());
      List<Side> ofRows = List.of(Side.of(sent, metadata));
      IntFunction<UdfAnswers.OverRows> overRows =
          (IntFunction<UdfAnswers.OverRows> & Serializable)
              partition ->
                  new UdfAnswers.OverRows(
                      rows, arguments, input, results, isOfSidecar, lags, partition);
      if (!canGiveColumns(node)) {
        return Signature.of(ofRows, types, overRows::apply, Input::ofRows);
      }
      List<Expression> written = new ArrayList<>(CollectionConverters.asJava(input));
      written.addAll(arguments());
      return new Signature(
          List.of(
              new Side(UdfAnswers.types(SidecarNode.seq(written)), places(node), sent, metadata)),
          ofRows,
          types,
          partition ->
              new ColumnsThenRows(rows, results, isOfSidecar, () -> overRows.apply(partition)),
          Input::ofStage);
    }

    /** Returns false if the input is rows: they wait for their results and stay rows. */
    @Override
    default boolean canGiveColumns(SidecarNode node) {
      return node.takesColumns() || node.isOverStage();
    }
  }

  /** Work of a sidecar's UDFs. */
  record SidecarUdfs(
      SidecarCall call,
      List<UdfSteps.Use> uses,
      Seq<Expression> arguments,
      Seq<Attribute> results)
      implements Udfs {
    @Override
    public String name() {
      return call.nodeName();
    }

    @Override
    public Call call(SidecarNode node) {
      return call;
    }

    @Override
    public Signature signature(SidecarNode node) {
      StructType answer = UdfAnswers.types(results);
      return signature(node, SparkTypes::of, UdfSteps.metadata(uses, answer, node.conf()), false);
    }

    @Override
    public List<Expression> sent() {
      return CollectionConverters.asJava(arguments);
    }

    /** Returns for each UDF its result, and the function's arguments with their names. */
    @Override
    public List<Object> shown() {
      List<String> shown = new ArrayList<>();
      for (int i = 0; i < uses.size(); i++) {
        UdfSteps.Use use = uses.get(i);
        List<String> given = new ArrayList<>();
        for (int k = 0; k < use.names().size(); k++) {
          given.add(arguments.apply(use.arguments().get(k)) + " AS " + use.names().get(k));
        }
        shown.add(String.format("%s: (%s)", results.apply(i), String.join(", ", given)));
      }
      return List.of("udf", call, CollectionConverters.asScala(shown).toSeq());
    }
  }

  /** Work of UDFs in Spark's own workers. */
  record PythonUdfs(Seq<PythonUDF> udfs, Seq<Attribute> results, Option<String> artifacts)
      implements Udfs {
    @Override
    public String name() {
      return "ArrowEvalPython over rings";
    }

    @Override
    public Call call(SidecarNode node) {
      return PythonCalls.ofUdfs(
          CollectionConverters.asJava(udfs), artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(SidecarNode node) {
      return signature(node, SparkTypes::of, Map.of(), isIterator());
    }

    private boolean isIterator() {
      return FunctionKind.of(udfs.head().evalType())
          .filter(kind -> kind.has(Trait.ITERATOR))
          .isPresent();
    }

    /**
     * Returns false for iterators, which may take all input before they give a result: only rows
     * can wait in a file.
     */
    @Override
    public boolean writesColumns(SidecarNode node) {
      return !isIterator() && Udfs.super.writesColumns(node);
    }

    @Override
    public boolean keepsOrder() {
      return false;
    }

    @Override
    public boolean keepsPartitioning() {
      return false;
    }

    @Override
    public List<Expression> sent() {
      return PythonCalls.arguments(CollectionConverters.asJava(udfs));
    }
  }

  /**
   * Work of a UDTF: the output is some of the child's columns with the results beside them.
   *
   * @param kept the child's columns in the output
   */
  record PythonUdtf(
      PythonUDTF function, Seq<Attribute> kept, Seq<Attribute> results, Option<String> artifacts)
      implements Work {
    @Override
    public Seq<Attribute> beside(SidecarNode node) {
      return kept;
    }

    @Override
    public String name() {
      return "ArrowEvalPythonUDTF over rings";
    }

    @Override
    public boolean keepsPartitioning() {
      return false;
    }

    @Override
    public Call call(SidecarNode node) {
      return PythonCalls.ofUdfs(List.of(function), artifacts, node.whenMade);
    }

    @Override
    public Signature signature(SidecarNode node) {
      Seq<Expression> arguments =
          FrameSide.expressions(PythonCalls.arguments(List.of(function)));
      Seq<Attribute> input = node.child().output();
      Seq<Attribute> beside = kept;
      Seq<Attribute> output = results;
      return Signature.of(
          UdfAnswers.types(arguments),
          node.whenMade.types(),
          partition -> new MapAnswers.OfUdtf(arguments, input, beside, output, partition),
          Input::ofRows);
    }
  }

  /**
   * Work of a function of groups, or of cogroups of two children; perhaps a sidecar's applyInArrow.
   *
   * @param function the function; over one child, its arguments are the columns sent to a sidecar
   * @param keys grouping keys of each child
   */
  record Groups(
      String name,
      PythonUDF function,
      Seq<Seq<Attribute>> keys,
      Seq<Attribute> results,
      Option<String> artifacts)
      implements Work {
    /**
     * Returns the columns that are sent of a child. Spark's workers get the columns that Spark's
     * own node sends. A sidecar gets the function's arguments, with their names, if there is one
     * child; if there are two, it gets the own columns of each child's frame.
     *
     * @param output the child's columns; if there are two children, Spark has put the keys before
     *     the frame's own columns, which may contain the keys again
     */
    FrameSide side(int child, Seq<Attribute> output) {
      Seq<Attribute> by = keys.apply(child);
      List<? extends Expression> columns;
      if (SidecarCall.of(function).isEmpty()) {
        columns = CollectionConverters.asJava(PandasGroupUtils.resolveArgOffsets(output, by)._1());
      } else if (keys.size() == 1) {
        columns = CollectionConverters.asJava(function.children());
      } else {
        columns = CollectionConverters.asJava(output).subList(by.size(), output.size());
      }
      return FrameSide.of(by, output, columns);
    }

    @Override
    public Call call(SidecarNode node) {
      Optional<SidecarCall> sidecar = SidecarCall.of(function);
      if (sidecar.isPresent()) {
        return sidecar.get();
      }
      int[] places = // places of keys and values among the sent columns
          IntStream.range(0, keys.size())
              .mapToObj(
                  i ->
                      PandasGroupUtils.resolveArgOffsets(
                          node.children().apply(i).output(), keys.apply(i)))
              .flatMapToInt(sent -> IntStream.of(sent._2()))
              .toArray();
      return PythonCalls.ofFrames(function, places, artifacts, node.whenMade);
    }

    @Override
    public Signature signature(SidecarNode node) {
      List<FrameSide> frames =
          IntStream.range(0, keys.size())
              .mapToObj(i -> side(i, node.children().apply(i).output()))
              .toList();
      StructType first = frames.get(0).sent();
      StructType output = node.schema();
      if (SidecarCall.of(function).isEmpty()) {
        return Signature.of(
            frames.stream().map(frame -> Side.of(frame.sent(), Map.of())).toList(),
            node.whenMade.types(),
            partition -> new MapAnswers.OfPython(output, first, Optional.empty()),
            (rows, handler) -> new FrameInput(rows, frames, (key, group) -> group, false));
      }
      ColumnMapping mapping =
          node.conf().pandasGroupedMapAssignColumnsByName()
              ? ColumnMapping.BY_NAME
              : ColumnMapping.BY_PLACE;
      StructType input = node.isOverOne() ? first : lists(first, frames.get(1).sent());
      Map<String, String> metadata = Map.of("shmring.group", node.isOverOne() ? "1" : "2");
      return Signature.of(
          List.of(Side.of(input, metadata)),
          Types.of(node.conf()),
          partition -> new MapAnswers("applyInArrow", mapping, output, input),
          (rows, handler) -> new FrameInput(rows, frames, (key, group) -> group, true));
    }

    /**
     * Returns the type of a cogroup in a sidecar's request: one row, with a list of rows per side.
     */
    private static StructType lists(StructType left, StructType right) {
      return new StructType()
          .add("left", new ArrayType(left, false), false)
          .add("right", new ArrayType(right, false), false);
    }

    @Override
    public Optional<SparkPlan> sparks(SidecarNode node) {
      SparkPlan first = node.child();
      return Optional.of(
          node.isOverOne()
              ? new FlatMapGroupsInArrowExec(keys.head(), function, results, first)
              : new FlatMapCoGroupsInArrowExec(
                  keys.head(), keys.last(), function, results, first, node.children().last()));
    }

    @Override
    public boolean canGiveColumns(SidecarNode node) {
      return true;
    }

    @Override
    public List<Object> shown() {
      Optional<SidecarCall> sidecar = SidecarCall.of(function);
      if (sidecar.isEmpty()) {
        return Work.super.shown();
      }
      List<Object> shown = new ArrayList<>(List.of("applyInArrow", sidecar.get()));
      shown.addAll(CollectionConverters.asJava(keys));
      shown.add(results);
      return shown;
    }
  }

  /**
   * Work of aggregates over groups: the output is the keys with the results beside them.
   *
   * @param aggregates aggregates of Python functions only
   */
  record PythonAggregates(
      Seq<NamedExpression> keys, Seq<AggregateExpression> aggregates, Option<String> artifacts)
      implements Work {
    static List<PythonFuncExpression> functions(Seq<AggregateExpression> aggregates) {
      return CollectionConverters.asJava(aggregates).stream()
          .map(each -> (PythonFuncExpression) each.aggregateFunction())
          .toList();
    }

    @Override
    public String name() {
      return "ArrowAggregatePython over rings";
    }

    @Override
    public Call call(SidecarNode node) {
      return PythonCalls.ofUdfs(functions(aggregates), artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(SidecarNode node) {
      Seq<Expression> arguments =
          FrameSide.expressions(PythonCalls.arguments(functions(aggregates)));
      Seq<Expression> by = FrameSide.expressions(CollectionConverters.asJava(keys));
      FrameSide side =
          new FrameSide(by, node.child().output(), arguments, UdfAnswers.types(arguments));
      StructType waiting = UdfAnswers.types(by);
      StructType results = UdfAnswers.types(SidecarNode.seq(answered()));
      return Signature.of(
          side.sent(),
          Types.of(node.conf()),
          partition -> new UdfAnswers.OfWaiting(waiting, results),
          (rows, handler) ->
              new FrameInput(
                  rows,
                  List.of(side),
                  (key, group) -> {
                    ((UdfAnswers.OfWaiting) handler).add(key);
                    return group;
                  },
                  false));
    }

    private List<Attribute> answered() {
      return CollectionConverters.asJava(aggregates).stream()
          .map(AggregateExpression::resultAttribute)
          .toList();
    }

    @Override
    public Seq<Attribute> results() {
      Seq<Attribute> by = PythonWindows.attributes(keys);
      return SidecarNode.joined(by, SidecarNode.seq(answered()));
    }

    @Override
    public Optional<SparkPlan> sparks(SidecarNode node) {
      return Optional.of(
          new ArrowAggregatePythonExec(
              keys,
              aggregates,
              SidecarNode.seq(List.<NamedExpression>of()),
              node.child(),
              functions(aggregates).get(0).evalType()));
    }
  }

  /**
   * Work of aggregates over windows: the output is the child's columns with the results beside
   * them.
   *
   * @param windows windows of Python functions only
   */
  record PythonWindows(
      Seq<NamedExpression> windows,
      Seq<Expression> partition,
      Seq<SortOrder> order,
      Option<String> artifacts)
      implements Work {
    static List<PythonFuncExpression> functions(Seq<NamedExpression> windows) {
      return CollectionConverters.asJava(windows).stream()
          .flatMap(each -> Windows.function(each).stream())
          .toList();
    }

    @Override
    public String name() {
      return "ArrowWindowPython over rings";
    }

    private int evalType() {
      return (int) WindowFunctionType.pythonEvalType(windows.head()).get();
    }

    private Windows frames(SidecarNode node) {
      return Windows.of(windows, partition, order, node.child().output(), evalType());
    }

    @Override
    public Call call(SidecarNode node) {
      Windows frames = frames(node);
      return PythonCalls.ofUdfs(functions(windows), artifacts, Settings.of(node.conf()))
          .ofWindows(FunctionKind.of(evalType()).orElseThrow(), frames.places(windows), frames.frames().size());
    }

    /**
     * Returns the sent columns: the bounds, which follow a row's own columns, then the arguments.
     */
    private FrameSide side(SidecarNode node, int bounds) {
      int columns = node.child().output().size();
      List<Object> sent = new ArrayList<>();
      for (int i = 0; i < bounds; i++) {
        sent.add(new BoundReference(columns + i, DataTypes.IntegerType, false));
      }
      sent.addAll(PythonCalls.arguments(functions(windows)));
      Seq<Expression> all = FrameSide.expressions(sent);
      return new FrameSide(partition, node.child().output(), all, UdfAnswers.types(all));
    }

    @Override
    public Signature signature(SidecarNode node) {
      Windows frames = frames(node);
      FrameSide side = side(node, 2 * frames.frames().size());
      StructType waiting = node.child().schema();
      StructType results = UdfAnswers.types(results());
      return Signature.of(
          side.sent(),
          SparkTypes::of,
          partition -> new UdfAnswers.OfWaiting(waiting, results),
          (rows, handler) -> {
            var begin = frames.begin();
            return new FrameInput(
                rows,
                List.of(side),
                (key, group) ->
                    begin.apply(group.map(((UdfAnswers.OfWaiting) handler)::add)),
                false);
          });
    }

    @Override
    public Seq<Attribute> beside(SidecarNode node) {
      return node.child().output();
    }

    @Override
    public Seq<Attribute> results() {
      return attributes(windows);
    }

    static Seq<Attribute> attributes(Seq<NamedExpression> named) {
      return SidecarNode.seq(
          CollectionConverters.asJava(named).stream().map(NamedExpression::toAttribute).toList());
    }

    @Override
    public boolean keepsOrder() {
      return true;
    }

    @Override
    public Optional<SparkPlan> sparks(SidecarNode node) {
      return Optional.of(
          new ArrowWindowPythonExec(windows, partition, order, node.child(), evalType()));
    }
  }
}
