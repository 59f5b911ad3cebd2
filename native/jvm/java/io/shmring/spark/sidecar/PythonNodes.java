package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameInput;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.MapSignature.PythonMapSignature;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature.AggregateSignature;
import io.shmring.spark.request.UdfSignature;
import io.shmring.spark.request.UdtfSignature;
import io.shmring.spark.request.Windows;
import io.shmring.spark.sidecar.PythonCalls.Settings;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
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
import org.apache.spark.sql.execution.python.PandasGroupUtils;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What Spark's own Python workers do over rings in a plan. `artifacts` are those of the query, by their uuid. */
final class PythonNodes {
  private PythonNodes() {}

  /** mapInArrow or mapInPandas of any function. */
  public static final class PythonMapExec extends SidecarNode.Mapping {
    private final String name;
    private final PythonUDF function;
    private final Option<String> artifacts;

    /**
     * @param name as plans show it
     */
    public PythonMapExec(
        String name,
        PythonUDF function,
        Seq<Attribute> output,
        boolean isBarrier,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(name, output, isBarrier, givesColumns, children);
      this.name = name;
      this.function = function;
      this.artifacts = artifacts;
    }

    @Override
    Call call() {
      return PythonCalls.ofFrames(function, new int[] {0}, artifacts, Settings.of(conf()));
    }

    @Override
    Signature signature(SparkTypes types) {
      return new PythonMapSignature(List.of(child().schema()), schema(), types);
    }

    @Override
    List<Object> shown() {
      return List.of(function, output, isBarrier);
    }

    @Override
    List<Object> own() {
      return List.of(name, function, output, isBarrier, artifacts);
    }
  }

  /** A function of groups, or of cogroups of two children. */
  public static final class PythonGroupsExec extends SidecarNode.Groups {
    private final Settings settings = Settings.of(conf());
    private final String name;
    private final Option<String> artifacts;

    /**
     * @param name as plans show it
     */
    public PythonGroupsExec(
        String name,
        PythonUDF function,
        Seq<Seq<Attribute>> keys,
        Seq<Attribute> output,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(name, function, keys, output, givesColumns, children);
      this.name = name;
      this.artifacts = artifacts;
    }

    /** What goes of a child's rows, as Spark tells it. */
    static FrameSide side(Seq<Attribute> keys, Seq<Attribute> output) {
      return FrameSide.of(
          keys,
          output,
          CollectionConverters.asJava(PandasGroupUtils.resolveArgOffsets(output, keys)._1()));
    }

    private List<FrameSide> sides() {
      return IntStream.range(0, children().size())
          .mapToObj(i -> side(keys.apply(i), children().apply(i).output()))
          .toList();
    }

    @Override
    Call call() {
      int[] places = // where keys and values stand among what goes
          IntStream.range(0, children().size())
              .mapToObj(
                  i ->
                      PandasGroupUtils.resolveArgOffsets(
                          children().apply(i).output(), keys.apply(i)))
              .flatMapToInt(sent -> IntStream.of(sent._2()))
              .toArray();
      return PythonCalls.ofFrames(function, places, artifacts, settings);
    }

    @Override
    SparkTypes types() {
      return settings.types();
    }

    @Override
    Signature signature(SparkTypes types) {
      return new PythonMapSignature(
          sides().stream().map(FrameSide::sent).toList(), schema(), types);
    }

    @Override
    Input.Kind<Iterator<InternalRow>> groups() {
      List<FrameSide> sides = sides();
      return (rows, handler) -> {
        List<Iterator<InternalRow>> each = new ArrayList<>();
        rows.forEachRemaining(each::add);
        return new FrameInput(each, sides, (key, group) -> group);
      };
    }

    @Override
    List<Object> shown() {
      return List.of(function, keys, output);
    }

    @Override
    List<Object> own() {
      return List.of(name, function, keys, output, artifacts);
    }
  }

  /** UDFs: the child's columns, and the results beside them. */
  public static final class PythonUdfExec extends SidecarNode.Udfs {
    private final Seq<PythonUDF> udfs;
    private final Option<String> artifacts;

    public PythonUdfExec(
        Seq<PythonUDF> udfs,
        Seq<Attribute> results,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super("ArrowEvalPython over rings", results, givesColumns, children);
      this.udfs = udfs;
      this.artifacts = artifacts;
    }

    @Override
    PythonCall call() {
      return PythonCalls.ofUdfs(
          CollectionConverters.asJava(udfs), artifacts, Settings.of(conf()));
    }

    @Override
    Signature signature(SparkTypes types) {
      return new UdfSignature(
          List.of(),
          seq(arguments()),
          sentPlaces(),
          child().output(),
          child().schema(),
          UdfSignature.types(results),
          types,
          call().isIterator());
    }

    /** An iterator may take all before it answers: rows that wait go to a file, and columns do not. */
    @Override
    boolean sendsColumns() {
      return !call().isIterator() && super.sendsColumns();
    }

    @Override
    List<Expression> arguments() {
      return PythonCalls.arguments(CollectionConverters.asJava(udfs));
    }

    @Override
    List<Object> shown() {
      return List.of(udfs, results);
    }

    @Override
    List<Object> own() {
      return List.of(udfs, results, artifacts);
    }
  }

  /** A UDTF: some of the child's columns, and its own beside them. */
  public static final class PythonUdtfExec extends SidecarNode.Unary {
    private final Settings settings = Settings.of(conf());
    private final PythonUDTF function;
    private final Seq<Attribute> kept;
    private final Seq<Attribute> results;
    private final Option<String> artifacts;

    /**
     * @param kept of the child's columns, beside the results
     */
    public PythonUdtfExec(
        PythonUDTF function,
        Seq<Attribute> kept,
        Seq<Attribute> results,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super("ArrowEvalPythonUDTF over rings", givesColumns, children);
      this.function = function;
      this.kept = kept;
      this.results = results;
      this.artifacts = artifacts;
    }

    @Override
    Call call() {
      return PythonCalls.ofUdfs(List.of(function), artifacts, settings);
    }

    @Override
    SparkTypes types() {
      return settings.types();
    }

    @Override
    Signature signature(SparkTypes types) {
      return new UdtfSignature(
          FrameSide.expressions(PythonCalls.arguments(List.of(function))),
          child().output(),
          kept,
          results,
          types);
    }

    @Override
    List<Attribute> produced() {
      return CollectionConverters.asJava(results);
    }

    @Override
    public Seq<Attribute> output() {
      List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(kept));
      output.addAll(produced());
      return seq(output);
    }

    @Override
    List<Object> shown() {
      return List.of(function, kept, results);
    }

    @Override
    List<Object> own() {
      return List.of(function, kept, results, artifacts);
    }
  }

  /** Aggregates of groups: the keys, and the results beside them. */
  public static final class PythonAggregateExec extends SidecarNode.Unary {
    private final Seq<NamedExpression> keys;
    private final Seq<AggregateExpression> aggregates;
    private final Option<String> artifacts;

    /**
     * @param aggregates whose functions are all Python's
     */
    public PythonAggregateExec(
        Seq<NamedExpression> keys,
        Seq<AggregateExpression> aggregates,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super("ArrowAggregatePython over rings", givesColumns, children);
      this.keys = keys;
      this.aggregates = aggregates;
      this.artifacts = artifacts;
    }

    static List<PythonFuncExpression> functions(Seq<AggregateExpression> aggregates) {
      return CollectionConverters.asJava(aggregates).stream()
          .map(each -> (PythonFuncExpression) each.aggregateFunction())
          .toList();
    }

    @Override
    Call call() {
      return PythonCalls.ofUdfs(functions(aggregates), artifacts, Settings.of(conf()));
    }

    @Override
    Signature signature(SparkTypes types) {
      FrameSide side = side();
      return new AggregateSignature(
          side.sent(),
          UdfSignature.types(side.keys()),
          UdfSignature.types(seq(results())),
          types,
          false);
    }

    private FrameSide side() {
      Seq<Expression> arguments =
          FrameSide.expressions(PythonCalls.arguments(functions(aggregates)));
      Seq<Expression> by = FrameSide.expressions(CollectionConverters.asJava(keys));
      return new FrameSide(by, child().output(), arguments, UdfSignature.types(arguments));
    }

    @Override
    Input.Kind<InternalRow> rows() {
      FrameSide side = side();
      return (rows, handler) ->
          new FrameInput(
              List.of(CollectionConverters.asScala(rows)),
              List.of(side),
              (key, group) -> {
                ((AggregateSignature.Answers) handler).begun(key);
                return group;
              });
    }

    private List<Attribute> results() {
      return CollectionConverters.asJava(aggregates).stream()
          .map(AggregateExpression::resultAttribute)
          .toList();
    }

    @Override
    public Seq<Attribute> output() {
      List<Attribute> output = new ArrayList<>();
      CollectionConverters.asJava(keys).forEach(key -> output.add(key.toAttribute()));
      output.addAll(results());
      return seq(output);
    }

    @Override
    Optional<SparkPlan> sparks() {
      return Optional.of(
          new ArrowAggregatePythonExec(
              keys,
              aggregates,
              seq(List.<NamedExpression>of()),
              child(),
              functions(aggregates).get(0).evalType()));
    }

    @Override
    List<Object> shown() {
      return List.of(keys, aggregates);
    }

    @Override
    List<Object> own() {
      return List.of(keys, aggregates, artifacts);
    }
  }

  /** Aggregates of windows: the child's columns, and the results beside them. */
  public static final class PythonWindowExec extends SidecarNode.Unary {
    private final Seq<NamedExpression> windows;
    private final Seq<Expression> partition;
    private final Seq<SortOrder> order;
    private final Option<String> artifacts;

    /**
     * @param windows whose functions are all Python's
     */
    public PythonWindowExec(
        Seq<NamedExpression> windows,
        Seq<Expression> partition,
        Seq<SortOrder> order,
        Option<String> artifacts,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super("ArrowWindowPython over rings", givesColumns, children);
      this.windows = windows;
      this.partition = partition;
      this.order = order;
      this.artifacts = artifacts;
    }

    static List<PythonFuncExpression> functions(Seq<NamedExpression> windows) {
      return CollectionConverters.asJava(windows).stream()
          .flatMap(each -> Windows.function(each).stream())
          .toList();
    }

    private int evalType() {
      return (int) WindowFunctionType.pythonEvalType(windows.head()).get();
    }

    private Windows frames() {
      return Windows.of(windows, partition, order, child().output(), evalType());
    }

    @Override
    Call call() {
      Windows frames = frames();
      return PythonCalls.ofUdfs(functions(windows), artifacts, Settings.of(conf()))
          .ofWindows(evalType(), frames.places(windows), frames.frames().size());
    }

    /** The bounds go before the arguments, from behind the columns of a row. */
    private FrameSide side() {
      int columns = child().output().size();
      int bounds = 2 * frames().frames().size();
      List<Object> sent = new ArrayList<>();
      for (int i = 0; i < bounds; i++) {
        sent.add(new BoundReference(columns + i, DataTypes.IntegerType, false));
      }
      sent.addAll(PythonCalls.arguments(functions(windows)));
      Seq<Expression> all = FrameSide.expressions(sent);
      return new FrameSide(partition, child().output(), all, UdfSignature.types(all));
    }

    @Override
    Signature signature(SparkTypes types) {
      return new AggregateSignature(
          side().sent(), child().schema(), UdfSignature.types(seq(produced())), types, true);
    }

    @Override
    Input.Kind<InternalRow> rows() {
      FrameSide side = side();
      Windows frames = frames();
      return (rows, handler) -> {
        var waiting = (AggregateSignature.Answers) handler;
        var begin = frames.begin();
        return new FrameInput(
            List.of(CollectionConverters.asScala(rows)),
            List.of(side),
            (key, group) -> begin.apply(group.map(waiting::begun)));
      };
    }

    @Override
    List<Attribute> produced() {
      return CollectionConverters.asJava(windows).stream()
          .map(NamedExpression::toAttribute)
          .toList();
    }

    @Override
    public Seq<Attribute> output() {
      List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(child().output()));
      output.addAll(produced());
      return seq(output);
    }

    @Override
    public Seq<SortOrder> outputOrdering() {
      return child().outputOrdering();
    }

    @Override
    Optional<SparkPlan> sparks() {
      return Optional.of(
          new ArrowWindowPythonExec(windows, partition, order, child(), evalType()));
    }

    @Override
    List<Object> shown() {
      return List.of(windows, partition, order);
    }

    @Override
    List<Object> own() {
      return List.of(windows, partition, order, artifacts);
    }
  }
}
