package io.shmring.spark.functions;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import io.shmring.spark.columns.SparkTypes;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/** Collects UDFs of sidecars in the order of their calls, and plans as few nodes as possible. */
final class UdfSteps {
  /** Maximum number of calls that a request may ask for; equal to MOST in sidecars/calls.py. */
  private static final int MOST = 256;

  /**
   * Describes one of several UDFs that share a list of arguments.
   *
   * @param arguments places of this UDF's arguments in the list, in order
   * @param names names of the columns that the sidecar's function sees for them
   */
  record Use(List<Integer> arguments, List<String> names) implements Serializable {}

  private record Step(UdfCall udf, List<Expression> arguments, Attribute result) {}

  private final List<Step> steps = new ArrayList<>();

  /** Whether a sidecar executes this function and all functions in its arguments. */
  static boolean isOurs(PythonUDF function) {
    Optional<UdfCall> udf = UdfCall.of(function);
    if (udf.isEmpty()) {
      return false;
    }
    List<Expression> arguments = CollectionConverters.asJava(function.children());
    for (Expression argument : arguments) {
      if (argument instanceof NamedArgumentExpression
          || (argument instanceof PythonUDF inner && !isOurs(inner))) {
        return false;
      }
    }
    List<StructType> types = new ArrayList<>();
    types.add(new StructType().add(function.name(), function.dataType()));
    for (Expression argument : arguments) {
      String name = argument instanceof NamedExpression named ? named.name() : argument.sql();
      types.add(new StructType().add(name, argument.dataType()));
    }
    FunctionPlan.check(udf.get().call(), "a UDF", types.toArray(StructType[]::new));
    return !arguments.isEmpty();
  }

  /**
   * Adds a UDF, and before it the UDFs that compute its arguments. Each inner UDF puts its result
   * into a new column, which only the outer UDF takes.
   *
   * @param result column for the UDF's result
   */
  void add(PythonUDF function, Attribute result) {
    List<Expression> arguments = new ArrayList<>();
    for (Expression argument : CollectionConverters.asJava(function.children())) {
      if (argument instanceof PythonUDF inner) {
        Attribute between = inner.resultAttribute().newInstance();
        add(inner, between);
        arguments.add(between);
      } else {
        arguments.add(argument);
      }
    }
    steps.add(new Step(UdfCall.of(function).orElseThrow(), arguments, result));
  }

  /**
   * Returns a plan of nodes over a child; each node has all the UDFs that one request can ask for.
   *
   * @param wanted columns needed above the nodes; other columns are dropped between the nodes
   */
  SparkPlan over(SparkPlan child, List<Attribute> wanted) {
    List<List<Step>> levels = new ArrayList<>();
    for (Step step : steps) {
      int first = levels.size();
      while (first > 0 && !takesResults(step, levels.get(first - 1))) {
        first--;
      }
      levels.subList(first, levels.size()).stream()
          .filter(level -> isBeside(level, step))
          .findFirst()
          .orElseGet(() -> added(levels))
          .add(step);
    }
    SparkPlan planned = node(levels.get(0), child);
    for (int i = 1; i < levels.size(); i++) {
      planned = node(levels.get(i), pruned(planned, levels.subList(i, levels.size()), wanted));
    }
    return planned;
  }

  /** Returns the plan with only the columns that are wanted or that UDFs above the plan take. */
  private static SparkPlan pruned(SparkPlan plan, List<List<Step>> above, List<Attribute> wanted) {
    List<Expression> taking = new ArrayList<>(wanted);
    above.forEach(level -> level.forEach(step -> taking.addAll(step.arguments)));
    List<NamedExpression> left = new ArrayList<>();
    for (Attribute column : CollectionConverters.asJava(plan.output())) {
      if (taking.stream().anyMatch(each -> each.references().contains(column))) {
        left.add(column);
      }
    }
    return left.size() == plan.output().size()
        ? plan
        : new ProjectExec(CollectionConverters.asScala(left).toList(), plan);
  }

  private static List<Step> added(List<List<Step>> levels) {
    List<Step> level = new ArrayList<>();
    levels.add(level);
    return level;
  }

  private static boolean takesResults(Step step, List<Step> level) {
    return level.stream()
        .anyMatch(
            other ->
                step.arguments.stream()
                    .anyMatch(argument -> argument.references().contains(other.result)));
  }

  /**
   * Whether one request can ask for this UDF together with the UDFs of a level, which are called
   * together: a request has at most MOST calls, and all UDFs must call the same sidecar with the
   * same options.
   */
  private static boolean isBeside(List<Step> level, Step step) {
    return level.size() < MOST && step.udf.call().equals(level.get(0).udf.call());
  }

  private static SparkPlan node(List<Step> together, SparkPlan child) {
    List<Use> uses = new ArrayList<>();
    List<Expression> arguments = new ArrayList<>();
    List<Attribute> results = new ArrayList<>();
    for (Step step : together) {
      List<Integer> taken = new ArrayList<>();
      List<String> names = new ArrayList<>();
      for (Expression argument : step.arguments) {
        names.add(step.udf.name(taken.size()));
        taken.add(place(argument, arguments));
      }
      uses.add(new Use(List.copyOf(taken), List.copyOf(names)));
      results.add(step.result);
    }
    return FunctionNode.of(
        new UdfPlan.SidecarUdfs(
            together.get(0).udf.call(),
            List.copyOf(uses),
            FunctionNode.seq(arguments),
            FunctionNode.seq(results)),
        List.of(child));
  }

  /**
   * Returns the metadata of a request for the UDFs; sidecars/wire.py describes it.
   *
   * @param answer types to which the sidecar casts its results, as Spark's workers do
   */
  static Map<String, String> metadata(List<Use> uses, StructType answer, SQLConf conf) {
    ArrayNode calls = JsonNodeFactory.instance.arrayNode();
    for (Use use : uses) {
      ArrayNode call = calls.addArray();
      for (int i = 0; i < use.arguments().size(); i++) {
        call.addArray().add(use.names().get(i)).add(use.arguments().get(i));
      }
    }
    // UTC instead of the session's time zone, because Spark's Python workers cast to UTC, too.
    SparkTypes cast = new SparkTypes("UTC", conf.arrowUseLargeVarTypes());
    byte[] schema = cast.schema(answer).serializeAsMessage();
    // Sorted, so that the same calls have the same bytes of a schema in every executor: Map.of()
    // orders its entries differently in each JVM.
    return new TreeMap<>(
        Map.of(
            "shmring.calls", calls.toString(),
            "shmring.answer", Base64.getEncoder().encodeToString(schema)));
  }

  /** Returns the place of an argument in the list, after adding it if it is new. */
  private static int place(Expression argument, List<Expression> arguments) {
    if (PythonCalls.place(argument, arguments) < 0) {
      arguments.add(argument);
    }
    return PythonCalls.place(argument, arguments);
  }
}
