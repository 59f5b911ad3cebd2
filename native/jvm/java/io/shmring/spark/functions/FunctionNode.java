package io.shmring.spark.functions;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.functions.PythonCalls.Settings;
import io.shmring.spark.request.AnsweredBatches;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.FunctionTask.Metrics;
import io.shmring.spark.request.FunctionTask;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.Signature;
import java.lang.reflect.RecordComponent;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Distribution;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ExplainUtils;
import org.apache.spark.sql.execution.RowToColumnarExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.reflect.ClassTag;

/**
 * A node of a plan that executes functions of a sidecar, or of Spark's own Python workers, over
 * rings: each task sends its rows over a ring and takes the answers. {@link SparkNodes} has the
 * subclasses.
 */
public abstract sealed class FunctionNode extends ProductPlan
    permits SparkNodes.OverOne, SparkNodes.OverTwo {
  private final Work work;
  private final Seq<Object> components; // values of the record components of the work
  final boolean givesColumns;
  private final Seq<SparkPlan> children;
  // Settings at the time when this node was made. Functions of groups and cogroups, and UDTFs, use
  // them, because Spark's own nodes of these functions read the settings when they are made.
  final Settings whenMade = Settings.of(conf());
  private transient Metrics metrics;

  /**
   * The parameters are the values that productElement() returns, because Spark copies a node by
   * passing these values to a constructor of the node's class.
   *
   * @param components values of the record components of the work
   * @param givesColumns whether the node above takes batches of columns, each valid until the next
   */
  FunctionNode(
      Class<? extends Work> kind,
      Seq<Object> components,
      boolean givesColumns,
      Seq<SparkPlan> children) {
    this.work = made(kind, components);
    this.components = components;
    this.givesColumns = givesColumns;
    this.children = children;
  }

  /** Makes the node of a work. {@link SparkNodes} says why different works need several classes. */
  static FunctionNode of(Work work, List<SparkPlan> children) {
    Seq<Object> components = seq(components(work));
    Class<? extends Work> kind = work.getClass();
    if (children.size() == 2) {
      return new SparkNodes.OverTwo(kind, components, false, seq(children));
    }
    if (work instanceof WindowPlan.PythonWindows) {
      return new SparkNodes.OfWindows(kind, components, false, seq(children));
    }
    return work instanceof UdfPlan.UdfWork
        ? new SparkNodes.OfUdfs(kind, components, false, seq(children))
        : new SparkNodes.OverOne(kind, components, false, seq(children));
  }

  Work work() {
    return work;
  }

  /** Returns the values of a work's record components, in their order. */
  static List<Object> components(Work work) {
    List<Object> components = new ArrayList<>();
    try {
      for (RecordComponent each : work.getClass().getRecordComponents()) {
        components.add(each.getAccessor().invoke(work));
      }
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
    return components;
  }

  private static Work made(Class<? extends Work> kind, Seq<Object> components) {
    Class<?>[] types =
        Arrays.stream(kind.getRecordComponents())
            .map(RecordComponent::getType)
            .toArray(Class<?>[]::new);
    try {
      return kind.getDeclaredConstructor(types)
          .newInstance(CollectionConverters.asJava(components).toArray());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  static <T> Seq<T> seq(List<T> list) {
    return CollectionConverters.asScala(list).toList();
  }

  static Seq<Attribute> joined(Seq<Attribute> some, Seq<Attribute> more) {
    List<Attribute> all = new ArrayList<>(CollectionConverters.asJava(some));
    all.addAll(CollectionConverters.asJava(more));
    return seq(all);
  }

  static Seq<Attribute> attributes(Seq<NamedExpression> named) {
    return seq(
        CollectionConverters.asJava(named).stream().map(NamedExpression::toAttribute).toList());
  }

  @Override
  public Seq<SparkPlan> children() {
    return children;
  }

  public SparkPlan child() {
    return children.head();
  }

  boolean isOverOne() {
    return children.size() == 1;
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.toList());
  }

  private SparkPlan copy(boolean givesColumns, Seq<SparkPlan> children) {
    return makeCopy(new Object[] {work.getClass(), components, givesColumns, children});
  }

  @Override
  public Seq<Attribute> output() {
    return joined(work.beside(this), work.results());
  }

  @Override
  public AttributeSet producedAttributes() {
    return AttributeSet$.MODULE$.apply(
        CollectionConverters.asScala(List.copyOf(CollectionConverters.asJava(work.results()))));
  }

  @Override
  public Partitioning outputPartitioning() {
    return work.keepsPartitioning() ? child().outputPartitioning() : super.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return work.keepsOrder() ? child().outputOrdering() : super.outputOrdering();
  }

  @Override
  public Seq<Distribution> requiredChildDistribution() {
    return work.sparks(this)
        .map(SparkPlan::requiredChildDistribution)
        .orElseGet(super::requiredChildDistribution);
  }

  @Override
  public Seq<Seq<SortOrder>> requiredChildOrdering() {
    return work.sparks(this)
        .map(SparkPlan::requiredChildOrdering)
        .orElseGet(super::requiredChildOrdering);
  }

  // --- columns instead of rows ----------------------------------------------------------------

  /** Returns a copy of this node that gives columns; empty if the node can only give rows. */
  Optional<SparkPlan> givingColumns() {
    return work.canGiveColumns(this) ? Optional.of(copy(true, children)) : Optional.empty();
  }

  /**
   * Returns this node with a better child. If the child only makes rows of columns that this node
   * can take, the better child is the source of these columns. Otherwise, if the child's generated
   * code can write its rows into batches, the better child is a {@link RowsToArrowExec}, which does
   * this. Returns this node unchanged if neither is possible.
   */
  SparkPlan overColumns() {
    if (!isOverOne()) {
      return this;
    }
    SparkPlan columns = child();
    if (columns instanceof ColumnarToRowExec rows) {
      columns = rows.child();
    } else if (columns instanceof ColumnsToRowsExec rows) {
      columns = rows.child();
    } else if (columns instanceof FunctionNode sidecar) {
      columns = sidecar.givingColumns().orElse(columns);
    }
    if (takesColumns(columns) || keepsBatches(columns)) {
      return columns == child() ? this : over(columns);
    }
    return RowsToArrowExec.takes(child())
        ? work.computed(this).map(computed -> over(stage(computed))).orElse(this)
        : this;
  }

  private SparkPlan stage(Seq<Expression> computed) {
    return FunctionColumns.overGenerated(
        new RowsToArrowExec(ColumnsToRowsExec.in(child()), computed));
  }

  /** Whether the child is a stage of generated code that writes its rows into batches. */
  boolean isOverStage() {
    SparkPlan below = child() instanceof WholeStageCodegenExec stage ? stage.child() : child();
    return below instanceof RowsToArrowExec;
  }

  private SparkPlan over(SparkPlan better) {
    return withNewChildren(seq(List.of(better)));
  }

  private boolean takesColumns(SparkPlan columns) {
    return columns.supportsColumnar()
        && work.sendsColumns(this)
        && BatchSizes.areKnown(columns.schema());
  }

  boolean takesColumns() {
    return takesColumns(child());
  }

  /**
   * Whether a child's batches of columns are sent one by one, so that the functions get the same
   * batches. False if the child is a FunctionNode too: its batches do not end at the same rows as
   * the batches of Spark's own node would.
   */
  private boolean keepsBatches(SparkPlan columns) {
    return work.keepsBatches() && columns.supportsColumnar() && !(columns instanceof FunctionNode);
  }

  @Override
  public boolean supportsColumnar() {
    return givesColumns;
  }

  // --- tasks ----------------------------------------------------------------------------------

  @Override
  public RDD<InternalRow> doExecute() {
    return execute(AnsweredBatches::rows);
  }

  @Override
  public RDD<ColumnarBatch> doExecuteColumnar() {
    return execute(AnsweredBatches::columns);
  }

  private <R> RDD<R> execute(FunctionTask.Output<R> output) {
    if (givesColumns && !work.canGiveColumns(this)) {
      // This node was planned over columns, but another extension's rule has put rows below it.
      FunctionNode same = (FunctionNode) over(new RowToColumnarExec(child()));
      same.metrics = known();
      return same.execute(output);
    }
    Signature signature = work.signature(this);
    boolean keepsBatches = keepsBatches(child());
    if (takesColumns() || keepsBatches) {
      Input.Maker<ColumnarBatch> input =
          !keepsBatches
              ? Input::ofColumns
              : work.canGiveColumns(this) ? Input::ofBatches : Input::ofBatchRows;
      return mapped(child().executeColumnar(), task(signature, input, output));
    }
    FunctionTask<InternalRow, R> task = task(signature, signature.input(), output);
    return isOverOne()
        ? mapped(rows(child()), task)
        : rows(child())
            .zipPartitions(
                rows(children.last()),
                task.overTwo(),
                ClassTag$.MODULE$.apply(InternalRow.class),
                given());
  }

  /**
   * Returns a child's rows. The child may give only columns if another extension's rule put it
   * there.
   */
  private static RDD<InternalRow> rows(SparkPlan child) {
    return child.supportsRowBased()
        ? child.execute()
        : new ColumnarToRowExec(child).execute();
  }

  private <T, R> RDD<R> mapped(RDD<T> input, FunctionTask<T, R> task) {
    RDD<R> mapped =
        work.isBarrier()
            ? input.barrier().mapPartitions(task.overOne(), false, given())
            : input.mapPartitions(task.overOne(), false, given());
    return work.profile().isDefined() ? mapped.withResources(work.profile().get()) : mapped;
  }

  /** Returns the class of the output: batches of columns, or rows. */
  private <R> ClassTag<R> given() {
    return ClassTag$.MODULE$.apply(givesColumns ? ColumnarBatch.class : InternalRow.class);
  }

  /** Describes the work of each task. `input` makes the task's input, from rows or from columns. */
  private <T, R> FunctionTask<T, R> task(
      Signature signature, Input.Maker<T> input, FunctionTask.Output<R> output) {
    return new FunctionTask<>(work.call(this), signature, input, output, known());
  }

  private synchronized Metrics known() {
    if (metrics == null) {
      metrics = Metrics.make(sparkContext(), work.call(this) instanceof PythonCall);
    }
    return metrics;
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return known().byName();
  }

  // --- text of plans --------------------------------------------------------------------------

  @Override
  public String nodeName() {
    return work.name();
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(work.shown().iterator());
  }

  /** Returns the text for explain("formatted"), in the form of Spark's own nodes. */
  @Override
  public String verboseStringWithOperatorId() {
    StringBuilder text = new StringBuilder("\n" + formattedNodeName() + "\n");
    for (int i = 0; i < children.size(); i++) {
      String input = isOverOne() ? "Input" : i == 0 ? "Left output" : "Right output";
      text.append(ExplainUtils.generateFieldString(input, children.apply(i).output())).append("\n");
    }
    return text + "Arguments: " + argString(conf().maxToStringFields()) + "\n";
  }

  @Override
  List<Object> elements() {
    return List.of(work.getClass(), components, givesColumns, children);
  }
}
