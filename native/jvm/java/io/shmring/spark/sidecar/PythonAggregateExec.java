package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameInput;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature.AggregateSignature;
import io.shmring.spark.request.UdfSignature;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.ArrowAggregatePythonExec;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Aggregates of groups, in Spark's own Python workers: the keys, and the results beside them. */
public final class PythonAggregateExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private final Seq<NamedExpression> keys;
  private final Seq<AggregateExpression> aggregates;
  private final Option<String> artifacts;

  /**
   * @param aggregates whose functions are all Python's
   * @param artifacts of the query, by their uuid
   */
  public PythonAggregateExec(
      Seq<NamedExpression> keys,
      Seq<AggregateExpression> aggregates,
      Option<String> artifacts,
      SparkPlan child) {
    super("ArrowAggregatePython over rings", false, child);
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
    return PythonCalls.ofUdfs(functions(aggregates), artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    FrameSide side = side();
    return new AggregateSignature(
        side.sent(),
        UdfSignature.types(side.keys()),
        UdfSignature.types(results()),
        false,
        types);
  }

  private FrameSide side() {
    Seq<Expression> arguments =
        FrameSide.expressions(PythonCalls.arguments(functions(aggregates)));
    Seq<Expression> by = FrameSide.expressions(CollectionConverters.asJava(keys));
    return new FrameSide(by, child().output(), arguments, UdfSignature.types(arguments));
  }

  @Override
  Batches.Input.Kind<InternalRow> rows() {
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

  private Seq<Attribute> results() {
    return CollectionConverters.asScala(
            CollectionConverters.asJava(aggregates).stream()
                .map(AggregateExpression::resultAttribute)
                .toList())
        .toList();
  }

  @Override
  public Seq<Attribute> output() {
    List<Attribute> output = new ArrayList<>();
    CollectionConverters.asJava(keys).forEach(key -> output.add(key.toAttribute()));
    output.addAll(CollectionConverters.asJava(results()));
    return CollectionConverters.asScala(output).toList();
  }

  @Override
  Optional<SparkPlan> sparks() {
    return Optional.of(
        new ArrowAggregatePythonExec(
        keys,
        aggregates,
        CollectionConverters.asScala(List.<NamedExpression>of()).toList(),
        child(),
        functions(aggregates).get(0).evalType()));
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new PythonAggregateExec(keys, aggregates, artifacts, children.head());
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(keys, aggregates).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(keys, aggregates, artifacts, child());
  }
}
