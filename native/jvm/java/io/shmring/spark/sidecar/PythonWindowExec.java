package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameInput;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import io.shmring.spark.request.UdfSignature.AggregateSignature;
import io.shmring.spark.request.Windows;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.WindowFunctionType;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.ArrowWindowPythonExec;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Aggregates of windows, in Spark's own Python workers: the child's columns, and the results beside them. */
public final class PythonWindowExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private final Seq<NamedExpression> windows;
  private final Seq<Expression> partition;
  private final Seq<SortOrder> order;
  private final Option<String> artifacts;

  /**
   * @param windows whose functions are all Python's
   * @param artifacts of the query, by their uuid
   */
  public PythonWindowExec(
      Seq<NamedExpression> windows,
      Seq<Expression> partition,
      Seq<SortOrder> order,
      Option<String> artifacts,
      SparkPlan child) {
    super("ArrowWindowPython over rings", false, child);
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
    return PythonCalls.ofUdfs(functions(windows), artifacts)
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
        side().sent(), child().schema(), UdfSignature.types(results()), true, types);
  }

  @Override
  Batches.Input.Kind<InternalRow> rows() {
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

  private Seq<Attribute> results() {
    return CollectionConverters.asScala(produced()).toList();
  }

  @Override
  List<Attribute> produced() {
    return CollectionConverters.asJava(windows).stream().map(NamedExpression::toAttribute).toList();
  }

  @Override
  public Seq<Attribute> output() {
    List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(child().output()));
    output.addAll(produced());
    return CollectionConverters.asScala(output).toList();
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
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new PythonWindowExec(windows, partition, order, artifacts, children.head());
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(windows, partition, order).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(windows, partition, order, artifacts, child());
  }
}
