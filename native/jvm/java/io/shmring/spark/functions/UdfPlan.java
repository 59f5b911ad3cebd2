package io.shmring.spark.functions;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.functions.PythonCalls.Settings;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.FunctionKind.Trait;
import io.shmring.spark.request.FunctionKind;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.Signature.Side;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfAnswers;
import io.shmring.spark.request.WaitingRows;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.plans.logical.ArrowEvalPython;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs, whose results stand beside the child's columns. A sidecar may execute them. */
record UdfPlan(ArrowEvalPython plan) implements FunctionPlan {
  @Override
  public List<PythonUDF> functions() {
    return CollectionConverters.asJava(plan.udfs());
  }

  /** Plans UDFs of sidecars, together with the UDFs of sidecars directly below them. */
  @Override
  public Optional<SparkPlan> ofSidecar(Function<LogicalPlan, SparkPlan> later) {
    Deque<ArrowEvalPython> evals = new ArrayDeque<>(); // nodes, the lowest first
    LogicalPlan below = plan;
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
    List<Attribute> wanted = CollectionConverters.asJava(plan.output());
    SparkPlan planned = steps.over(later.apply(below), wanted);
    return Optional.of(
        CollectionConverters.asJava(planned.output()).equals(wanted)
            ? planned
            : new ProjectExec(FunctionNode.seq(List.<NamedExpression>copyOf(wanted)), planned));
  }

  /**
   * Returns the plan below a projection that only selects columns, if there is one. Spark puts one
   * between two UDFs to drop the columns that only the lower UDF takes.
   */
  private static LogicalPlan source(LogicalPlan plan) {
    return plan instanceof Project project
            && CollectionConverters.asJava(project.projectList()).stream()
                .allMatch(Attribute.class::isInstance)
        ? project.child()
        : plan;
  }

  private static boolean isOurs(ArrowEvalPython eval) {
    return FunctionPlan.mayBeSidecars(eval.evalType())
        && CollectionConverters.asJava(eval.udfs()).stream().allMatch(UdfSteps::isOurs);
  }

  @Override
  public Work ofPython(Option<String> artifacts) {
    return new PythonUdfs(
        plan.udfs(), plan.resultAttrs(), artifacts, PythonCalls.keepBatches());
  }

  // CHANGE: edit this for a new kind of Python function
  /** Work of UDFs: the output is the child's columns with the results beside them. */
  interface UdfWork extends Work {
    /** Returns the distinct arguments of all UDFs. */
    List<Expression> sent();

    @Override
    default Seq<Attribute> beside(FunctionNode node) {
      return node.child().output();
    }

    @Override
    default boolean keepsOrder() {
      return true;
    }

    @Override
    default boolean sendsColumns(FunctionNode node) {
      return writesColumns(node) && arguments().isEmpty();
    }

    /** Whether all columns of the child can wait in vectors for the results. */
    default boolean writesColumns(FunctionNode node) {
      return SparkTypes.unsupported(UdfAnswers.types(node.child().output())).isEmpty();
    }

    /**
     * Returns the arguments to compute, if the child's generated code may compute them. All must be
     * deterministic, because Spark seeds the random numbers of an argument by the task, but those
     * of generated code by the partition. The node's output must not have more fields than Spark
     * generates code for: no generated code could read the output's columns, so they would be
     * copied into rows. Then it is faster to let the input rows wait in Spark's queue.
     */
    @Override
    default Optional<Seq<Expression>> computed(FunctionNode node) {
      return writesColumns(node)
              && !WholeStageCodegenExec.isTooManyFields(node.conf(), node.schema())
              && arguments().stream().allMatch(Expression::deterministic)
              && BatchSizes.areKnown(UdfAnswers.types(FunctionNode.seq(arguments())))
          ? Optional.of(FunctionNode.seq(arguments()))
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
    private List<Integer> places(FunctionNode node) {
      Seq<Attribute> child = node.child().output();
      var columns = package$.MODULE$.AttributeSeq(child);
      List<Expression> computed = arguments();
      return sent().stream()
          .map(
              each ->
                  each instanceof Attribute column
                      ? columns.indexOf(column.exprId())
                      : child.size() + computed.indexOf(each))
          .toList();
    }

    /**
     * @param metadata metadata of a sidecar's requests; empty if a Python worker answers
     * @param lags whether results may come only after all requests
     */
    default Signature signature(FunctionNode node, Map<String, String> metadata, boolean lags) {
      boolean isOfSidecar = !metadata.isEmpty();
      Seq<Expression> arguments = FunctionNode.seq(sent());
      Seq<Attribute> input = node.child().output();
      StructType rows = node.child().schema();
      StructType sent = UdfAnswers.types(arguments);
      StructType results = UdfAnswers.types(results());
      Signature.Answers answers =
          context -> new UdfAnswers(context, rows, arguments, input, results, isOfSidecar);
      if (!canGiveColumns(node)) {
        return Signature.of(
            List.of(Side.of(sent, metadata)),
            SparkTypes::of,
            lags
                ? context -> new WaitingRows.OfUdfs(context, rows, arguments, input, results)
                : answers,
            Input::ofRows);
      }
      List<Expression> written = new ArrayList<>(CollectionConverters.asJava(input));
      written.addAll(arguments());
      return new Signature(
          List.of(
              new Side(UdfAnswers.types(FunctionNode.seq(written)), places(node), sent, metadata)),
          true,
          SparkTypes::of,
          answers,
          Input::ofStage);
    }

    /**
     * Returns false if the node's input is rows: these wait for their results in Spark's queue of
     * rows, so the output is made of rows too.
     */
    @Override
    default boolean canGiveColumns(FunctionNode node) {
      return node.takesColumns() || node.isOverStage();
    }
  }

  /** Work of a sidecar's UDFs. */
  record SidecarUdfs(
      SidecarCall call,
      List<UdfSteps.Use> uses,
      Seq<Expression> arguments,
      Seq<Attribute> results)
      implements UdfWork, Work.OfSidecar {
    @Override
    public Signature signature(FunctionNode node) {
      StructType answer = UdfAnswers.types(results);
      return signature(node, UdfSteps.metadata(uses, answer, node.conf()), false);
    }

    @Override
    public List<Expression> sent() {
      return CollectionConverters.asJava(arguments);
    }

    /** Returns the call, and for each UDF its result and its arguments with their names. */
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

  /**
   * Work of UDFs in Spark's own workers.
   *
   * @param keepsBatches whether a child's batches of columns are sent one by one, so that a UDF
   *     gets the same batches; if false, their rows are divided into new batches
   */
  record PythonUdfs(
      Seq<PythonUDF> udfs, Seq<Attribute> results, Option<String> artifacts, boolean keepsBatches)
      implements UdfWork {
    @Override
    public String name() {
      return "ArrowEvalPython over rings";
    }

    @Override
    public Call call(FunctionNode node) {
      return PythonCalls.ofUdfs(
          CollectionConverters.asJava(udfs), artifacts, Settings.of(node.conf()));
    }

    @Override
    public Signature signature(FunctionNode node) {
      return signature(node, Map.of(), isIterator());
    }

    private boolean isIterator() {
      return FunctionKind.of(udfs.head().evalType())
          .filter(kind -> kind.has(Trait.ITERATOR))
          .isPresent();
    }

    /**
     * Returns false for functions that take iterators. Such a function may take all input before it
     * gives a result. If memory is short, the input then has to wait in a file, and only rows can
     * wait in a file: vectors stay in memory.
     */
    @Override
    public boolean writesColumns(FunctionNode node) {
      return !isIterator() && UdfWork.super.writesColumns(node);
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

    @Override
    public List<Object> shown() {
      return List.of(udfs, results);
    }
  }
}
