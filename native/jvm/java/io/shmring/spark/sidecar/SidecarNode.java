package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.SidecarTask.Metrics;
import io.shmring.spark.request.SidecarTask;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Distribution;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ExplainUtils;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.FlatMapCoGroupsInArrowExec;
import org.apache.spark.sql.execution.python.FlatMapGroupsInArrowExec;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.reflect.ClassTag;
import scala.runtime.AbstractFunction2;

/**
 * Functions over rings in a plan, of a sidecar or of Spark's own Python workers: each task sends its
 * rows over the ring and takes the answers. Spark copies a node through its public constructor, whose
 * arguments are the product's elements: the node's {@link #own}, whether it gives columns, its children.
 */
abstract class SidecarNode extends SparkPlan {
  private final String name;
  final boolean givesColumns;
  private final Seq<SparkPlan> children;
  private transient Metrics metrics;

  /**
   * @param name as plans show it
   * @param givesColumns whether what is above takes the answers' columns, each batch until the next
   */
  SidecarNode(String name, boolean givesColumns, Seq<SparkPlan> children) {
    this.name = name;
    this.givesColumns = givesColumns;
    this.children = children;
  }

  /** Whom its tasks ask. */
  abstract Call call();

  /** What is sent, and what comes of the answers. */
  abstract Signature signature(SparkTypes types);

  /** Of what is sent, as the session's settings are when its tasks are made. */
  SparkTypes types() {
    return SparkTypes.of(conf());
  }

  /** The constructor's arguments, in order, but for the last two. */
  abstract List<Object> own();

  /** What plans show of it. */
  abstract List<Object> shown();

  /** What it gives: its rows, or their columns. */
  abstract <R> RDD<R> execute(SidecarTask.Output<R> output);

  /** Columns that are not the children's. */
  List<Attribute> produced() {
    return CollectionConverters.asJava(output());
  }

  /** Whether there is the same node for what takes columns. */
  boolean canGiveColumns() {
    return false;
  }

  /** The same node for what takes columns; empty if it has only rows. */
  final Optional<SparkPlan> givingColumns() {
    return canGiveColumns() ? Optional.of(copy(true, children)) : Optional.empty();
  }

  /** Spark's own node, where children must lie as that one knows: its classes differ between versions. */
  Optional<SparkPlan> sparks() {
    return Optional.empty();
  }

  static <T> Seq<T> seq(List<T> list) {
    return CollectionConverters.asScala(list).toList();
  }

  @Override
  public final Seq<SparkPlan> children() {
    return children;
  }

  @Override
  public final SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.toList());
  }

  private SparkPlan copy(boolean givesColumns, Seq<SparkPlan> children) {
    return makeCopy(elements(givesColumns, children).toArray());
  }

  private List<Object> elements(boolean givesColumns, Seq<SparkPlan> children) {
    List<Object> elements = new ArrayList<>(own());
    elements.add(givesColumns);
    elements.add(children);
    return elements;
  }

  private List<Object> elements() {
    return elements(givesColumns, children);
  }

  @Override
  public final Partitioning outputPartitioning() {
    return children.head().outputPartitioning();
  }

  @Override
  public final Seq<Distribution> requiredChildDistribution() {
    return sparks()
        .map(SparkPlan::requiredChildDistribution)
        .orElseGet(super::requiredChildDistribution);
  }

  @Override
  public final Seq<Seq<SortOrder>> requiredChildOrdering() {
    return sparks().map(SparkPlan::requiredChildOrdering).orElseGet(super::requiredChildOrdering);
  }

  @Override
  public final RDD<InternalRow> doExecute() {
    return execute(SidecarTask.Output.rows());
  }

  @Override
  public final RDD<ColumnarBatch> doExecuteColumnar() {
    return execute(SidecarTask.Output.columns());
  }

  /** The class of what {@link #execute} gives. */
  final <R> ClassTag<R> given() {
    return ClassTag$.MODULE$.apply(givesColumns ? ColumnarBatch.class : InternalRow.class);
  }

  @Override
  public final boolean supportsColumnar() {
    return givesColumns;
  }

  /** What each task is to do with what the children give. */
  final <T, R> SidecarTask<T, R> task(Input.Kind<T> kind, SidecarTask.Output<R> output) {
    return new SidecarTask<>(call(), signature(types()), kind, output, known());
  }

  private synchronized Metrics known() {
    if (metrics == null) {
      metrics = Metrics.make(sparkContext());
    }
    return metrics;
  }

  @Override
  public final Map<String, SQLMetric> metrics() {
    return known().byName();
  }

  @Override
  public final AttributeSet producedAttributes() {
    return AttributeSet$.MODULE$.apply(CollectionConverters.asScala(List.copyOf(produced())));
  }

  @Override
  public final String nodeName() {
    return name;
  }

  @Override
  public final Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(shown().iterator());
  }

  /** For explain("formatted"), as Spark's own nodes have it. */
  @Override
  public final String verboseStringWithOperatorId() {
    StringBuilder text = new StringBuilder("\n" + formattedNodeName() + "\n");
    for (int i = 0; i < children.size(); i++) {
      String input = children.size() == 1 ? "Input" : i == 0 ? "Left output" : "Right output";
      text.append(ExplainUtils.generateFieldString(input, children.apply(i).output())).append("\n");
    }
    return text + "Arguments: " + argString(conf().maxToStringFields()) + "\n";
  }

  @Override
  public final int productArity() {
    return elements().size();
  }

  @Override
  public final Object productElement(int n) {
    return elements().get(n);
  }

  @Override
  public final boolean canEqual(Object other) {
    return other != null && other.getClass() == getClass();
  }

  @Override
  public final boolean equals(Object other) {
    return canEqual(other) && elements().equals(((SidecarNode) other).elements());
  }

  @Override
  public final int hashCode() {
    return elements().hashCode();
  }

  /** A node over one child, whose rows or columns go. */
  abstract static class Unary extends SidecarNode {
    Unary(String name, boolean givesColumns, Seq<SparkPlan> children) {
      super(name, givesColumns, children);
    }

    /** Whether all tasks must run at one time. */
    boolean isBarrier() {
      return false;
    }

    final SparkPlan child() {
      return children().head();
    }

    /** Whether the child's columns are what is sent, so that they need not become rows. */
    boolean sendsColumns() {
      return false;
    }

    /** Whether the child's rows are what is sent, one by one. */
    boolean sendsAllRows() {
      return false;
    }

    /** The node over a child's columns instead of the rows that are made of them. */
    final SparkPlan overColumns() {
      SparkPlan columns = child();
      if (columns instanceof ColumnarToRowExec rows) {
        columns = rows.child();
      } else if (columns instanceof SidecarNode sidecar) {
        columns = sidecar.givingColumns().orElse(columns);
      }
      if (takesColumns(columns)) {
        return columns == child() ? this : over(columns);
      }
      return sendsAllRows() && RowsToArrowExec.takes(child())
          ? over(new RowsToArrowExec(child()))
          : this;
    }

    private SparkPlan over(SparkPlan better) {
      return withNewChildren(seq(List.of(better)));
    }

    private boolean takesColumns(SparkPlan columns) {
      return columns.supportsColumnar() && sendsColumns() && BatchSizes.areKnown(columns.schema());
    }

    final boolean takesColumns() {
      return takesColumns(child());
    }

    /** How the child's rows become batches. */
    Input.Kind<InternalRow> rows() {
      return sendsAllRows() ? Input::ofStage : Input::ofRows;
    }

    @Override
    final <R> RDD<R> execute(SidecarTask.Output<R> output) {
      return takesColumns()
          ? mapped(child().executeColumnar(), task(Input::ofColumns, output))
          : mapped(child().execute(), task(rows(), output));
    }

    private <T, R> RDD<R> mapped(RDD<T> input, SidecarTask<T, R> task) {
      return isBarrier()
          ? input.barrier().mapPartitions(task, false, given())
          : input.mapPartitions(task, false, given());
    }
  }

  /** A function of batches: the child's rows go, and the answer's come instead of them. */
  abstract static class Mapping extends Unary {
    final Seq<Attribute> output;
    final boolean isBarrier;

    Mapping(
        String name,
        Seq<Attribute> output,
        boolean isBarrier,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(name, givesColumns, children);
      this.output = output;
      this.isBarrier = isBarrier;
    }

    @Override
    public final Seq<Attribute> output() {
      return output;
    }

    @Override
    final boolean sendsColumns() {
      return true;
    }

    @Override
    final boolean sendsAllRows() {
      return true;
    }

    @Override
    final boolean isBarrier() {
      return isBarrier;
    }

    @Override
    final boolean canGiveColumns() {
      return true;
    }
  }

  /** UDFs: the child's columns, and the results beside them. */
  abstract static class Udfs extends Unary {
    private static final Integer ABSENT = -1; // computed from them

    final Seq<Attribute> results;

    Udfs(String name, Seq<Attribute> results, boolean givesColumns, Seq<SparkPlan> children) {
      super(name, givesColumns, children);
      this.results = results;
    }

    /** What is sent for all of the UDFs. */
    abstract List<Expression> arguments();

    @Override
    public final Seq<Attribute> output() {
      List<Attribute> columns = new ArrayList<>(CollectionConverters.asJava(child().output()));
      columns.addAll(produced());
      return seq(columns);
    }

    @Override
    final List<Attribute> produced() {
      return CollectionConverters.asJava(results);
    }

    @Override
    boolean sendsColumns() {
      return !places().contains(ABSENT)
          && SparkTypes.unsupported(UdfSignature.types(child().output())).isEmpty();
    }

    /** Where the arguments stand among the child's columns, if these are sent. */
    final List<Integer> sentPlaces() {
      return takesColumns() ? places() : List.of();
    }

    private List<Integer> places() {
      List<ExprId> columns =
          CollectionConverters.asJava(child().output()).stream().map(Attribute::exprId).toList();
      return arguments().stream()
          .map(each -> each instanceof Attribute column ? columns.indexOf(column.exprId()) : ABSENT)
          .toList();
    }

    @Override
    public final Seq<SortOrder> outputOrdering() {
      return child().outputOrdering();
    }

    /**
     * What waits beside the results is what came: rows cannot be given as columns.
     *
     * @throws IllegalStateException if another extension's rule has put rows below this node since
     */
    @Override
    final Input.Kind<InternalRow> rows() {
      if (givesColumns) {
        throw new IllegalStateException(
            String.format(
                "%s is to give columns, and %s below it gives rows: a rule of another extension has"
                    + " replaced its child. Set %s=false, or leave that extension out",
                nodeName(), child().nodeName(), SidecarStrategy.DIRECT));
      }
      return super.rows();
    }

    /** Over rows it has rows: they wait for their results. */
    @Override
    final boolean canGiveColumns() {
      return takesColumns();
    }
  }

  /** A function of groups, or of cogroups of two children. */
  abstract static class Groups extends SidecarNode {
    final PythonUDF function;
    final Seq<Seq<Attribute>> keys;
    final Seq<Attribute> output;

    /**
     * @param keys of each child
     */
    Groups(
        String name,
        PythonUDF function,
        Seq<Seq<Attribute>> keys,
        Seq<Attribute> output,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(name, givesColumns, children);
      this.function = function;
      this.keys = keys;
      this.output = output;
    }

    /** How the rows of each child become batches. */
    abstract Input.Kind<Iterator<InternalRow>> groups();

    final boolean isOfOne() {
      return children().size() == 1;
    }

    /** How the columns of answers find their places. */
    final ColumnMapping mapping() {
      return conf().pandasGroupedMapAssignColumnsByName()
          ? ColumnMapping.BY_NAME
          : ColumnMapping.BY_PLACE;
    }

    @Override
    final <R> RDD<R> execute(SidecarTask.Output<R> output) {
      Input.Kind<Iterator<InternalRow>> groups = groups();
      Input.Kind<InternalRow> ofOne =
          (rows, handler) -> groups.of(List.of(CollectionConverters.asScala(rows)).iterator(), handler);
      RDD<InternalRow> first = children().head().execute();
      return isOfOne()
          ? first.mapPartitions(task(ofOne, output), false, given())
          : first.zipPartitions(
              children().last().execute(),
              new Together<>(task(groups, output)),
              ClassTag$.MODULE$.apply(InternalRow.class),
              given());
    }

    /** Gives a task both children's partitions. */
    private static final class Together<R>
        extends AbstractFunction2<Iterator<InternalRow>, Iterator<InternalRow>, Iterator<R>>
        implements Serializable {
      private final SidecarTask<Iterator<InternalRow>, R> task;

      Together(SidecarTask<Iterator<InternalRow>, R> task) {
        this.task = task;
      }

      @Override
      public Iterator<R> apply(Iterator<InternalRow> left, Iterator<InternalRow> right) {
        return task.apply(CollectionConverters.asScala(List.of(left, right).iterator()));
      }
    }

    @Override
    final Optional<SparkPlan> sparks() {
      SparkPlan first = children().head();
      return Optional.of(
          isOfOne()
              ? new FlatMapGroupsInArrowExec(keys.head(), function, output, first)
              : new FlatMapCoGroupsInArrowExec(
                  keys.head(), keys.last(), function, output, first, children().last()));
    }

    @Override
    public final Seq<Attribute> output() {
      return output;
    }

    @Override
    final boolean canGiveColumns() {
      return true;
    }
  }
}
