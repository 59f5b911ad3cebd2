package io.shmring.spark.functions;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.functions.PythonCalls.Settings;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.FunctionKind.Trait;
import io.shmring.spark.request.FunctionKind;
import io.shmring.spark.request.GroupInput;
import io.shmring.spark.request.GroupedSide;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfAnswers;
import io.shmring.spark.request.WaitingRows;
import io.shmring.spark.request.Windows;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.WindowFunctionType;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.ArrowWindowPythonExec;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans a Window node whose functions are all Python aggregates of one kind. Any other Window node
 * is left to Spark ({@link #isSparks}).
 */
record WindowPlan(Window plan) implements FunctionPlan {
  @Override
  public List<PythonFuncExpression> functions() {
    return PythonWindows.functions(plan.windowExpressions());
  }

  /**
   * Returns whether the plan is left to Spark. Spark executes windows without Python functions. It
   * refuses, with its own errors, windows that mix Python functions with other functions, Python
   * functions of several kinds, and functions that take iterators.
   */
  @Override
  public boolean isSparks() {
    List<PythonFuncExpression> functions = functions();
    return functions.size() < plan.windowExpressions().size()
        || functions.stream().map(PythonFuncExpression::evalType).distinct().count() > 1
        || FunctionKind.of(functions.get(0).evalType())
            .filter(kind -> kind.has(Trait.GOES_OVER_WINDOWS))
            .isEmpty();
  }

  @Override
  public Optional<String> objection() {
    return PythonCalls.objection(functions())
        .or(() -> SparkTypes.unsupported(UdfAnswers.types(plan.partitionSpec())));
  }

  @Override
  public Work ofPython(Option<String> artifacts) {
    return new PythonWindows(
        plan.windowExpressions(), plan.partitionSpec(), plan.orderSpec(), artifacts);
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

    private Windows frames(FunctionNode node) {
      return Windows.of(windows, partition, order, node.child().output(), evalType());
    }

    @Override
    public Call call(FunctionNode node) {
      Windows frames = frames(node);
      return PythonCalls.ofUdfs(functions(windows), artifacts, Settings.of(node.conf()))
          .ofWindows(
              FunctionKind.of(evalType()).orElseThrow(),
              frames.places(windows),
              frames.frames().size());
    }

    /**
     * Returns the columns that are sent: first the bounds of the row's windows, then the arguments.
     * In the rows that the columns are read from, the bounds follow the child's own columns.
     */
    private GroupedSide side(FunctionNode node, int bounds) {
      int columns = node.child().output().size();
      List<Object> sent = new ArrayList<>();
      for (int i = 0; i < bounds; i++) {
        sent.add(new BoundReference(columns + i, DataTypes.IntegerType, false));
      }
      sent.addAll(PythonCalls.arguments(functions(windows)));
      Seq<Expression> all = GroupedSide.expressions(sent);
      return new GroupedSide(partition, node.child().output(), all, UdfAnswers.types(all));
    }

    @Override
    public Signature signature(FunctionNode node) {
      Windows frames = frames(node);
      GroupedSide side = side(node, 2 * frames.frames().size());
      StructType waiting = node.child().schema();
      StructType results = UdfAnswers.types(results());
      return Signature.of(
          side.sent(),
          SparkTypes::of,
          context -> new WaitingRows(context, waiting, results),
          (rows, handler) -> {
            var begin = frames.begin();
            return new GroupInput(
                rows,
                List.of(side),
                (key, group) ->
                    begin.apply(group.map(((WaitingRows) handler)::add)),
                false);
          });
    }

    @Override
    public Seq<Attribute> beside(FunctionNode node) {
      return node.child().output();
    }

    @Override
    public Seq<Attribute> results() {
      return FunctionNode.attributes(windows);
    }

    @Override
    public boolean keepsOrder() {
      return true;
    }

    // CHANGE: edit this for a new version of Spark
    @Override
    public Optional<SparkPlan> sparks(FunctionNode node) {
      return Optional.of(
          new ArrowWindowPythonExec(windows, partition, order, node.child(), evalType()));
    }
  }
}
