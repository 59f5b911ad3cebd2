package io.shmring.spark.functions;

import io.shmring.spark.functions.PythonCalls.Settings;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.GroupInput;
import io.shmring.spark.request.GroupedSide;
import io.shmring.spark.request.Signature.Types;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfAnswers;
import io.shmring.spark.request.WaitingRows;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDAF;
import org.apache.spark.sql.catalyst.expressions.SessionWindow;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.planning.PhysicalAggregation;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.ArrowAggregatePythonExec;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple4;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Plans an Aggregate node of a batch query, if all its aggregates are Python functions. Any other
 * Aggregate node is left to Spark ({@link #isSparks}).
 */
record AggregatePlan(Aggregate plan) implements FunctionPlan {
  /** Returns the keys, the aggregates, the results computed from keys and aggregates, the child. */
  private Tuple4<
          Seq<NamedExpression>, Seq<AggregateExpression>, Seq<NamedExpression>, LogicalPlan>
      parts() {
    return PhysicalAggregation.unapply(plan).get();
  }

  @Override
  public List<PythonFuncExpression> functions() {
    return PythonAggregates.functions(parts()._2());
  }

  /**
   * Whether the plan is left to Spark. Spark executes the aggregates of a stream, and aggregates
   * without Python functions. It refuses plans that mix Python functions with other aggregates.
   */
  @Override
  public boolean isSparks() {
    if (plan.isStreaming()) {
      return true;
    }
    List<AggregateExpression> aggregates = CollectionConverters.asJava(parts()._2());
    return aggregates.isEmpty()
        || aggregates.stream().anyMatch(each -> !(each.aggregateFunction() instanceof PythonUDAF));
  }

  @Override
  public Optional<String> objection() {
    boolean isOfSessions =
        CollectionConverters.asJava(parts()._1()).stream()
            .anyMatch(key -> key.metadata().contains(SessionWindow.marker()));
    return isOfSessions
        ? Optional.of("it is of session windows")
        : PythonCalls.objection(functions());
  }

  @Override
  public Work ofPython(Option<String> artifacts) {
    return new PythonAggregates(parts()._1(), parts()._2(), artifacts);
  }

  /**
   * {@inheritDoc} A node computes the aggregates, and a projection above the node computes the
   * results from the keys and the aggregates.
   */
  @Override
  public SparkPlan overRings(Option<String> artifacts, Function<LogicalPlan, SparkPlan> later) {
    return new ProjectExec(
        parts()._3(), FunctionNode.of(ofPython(artifacts), List.of(later.apply(parts()._4()))));
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
    public Call call(FunctionNode node) {
      return PythonCalls.ofUdfs(functions(aggregates), artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(FunctionNode node) {
      Seq<Expression> arguments =
          GroupedSide.expressions(PythonCalls.arguments(functions(aggregates)));
      Seq<Expression> by = GroupedSide.expressions(CollectionConverters.asJava(keys));
      GroupedSide side =
          new GroupedSide(by, node.child().output(), arguments, UdfAnswers.types(arguments));
      StructType waiting = UdfAnswers.types(by);
      StructType results = UdfAnswers.types(FunctionNode.seq(answered()));
      return Signature.of(
          side.sent(),
          Types.of(node.conf()),
          context -> new WaitingRows(context, waiting, results),
          (rows, handler) ->
              new GroupInput(
                  rows,
                  List.of(side),
                  (key, group) -> {
                    ((WaitingRows) handler).add(key);
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
      Seq<Attribute> by = FunctionNode.attributes(keys);
      return FunctionNode.joined(by, FunctionNode.seq(answered()));
    }

    // CHANGE: edit this for a new version of Spark
    @Override
    public Optional<SparkPlan> sparks(FunctionNode node) {
      return Optional.of(
          new ArrowAggregatePythonExec(
              keys,
              aggregates,
              FunctionNode.seq(List.<NamedExpression>of()),
              node.child(),
              functions(aggregates).get(0).evalType()));
    }
  }
}
