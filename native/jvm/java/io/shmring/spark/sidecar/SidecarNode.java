package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.SidecarTask.Metrics;
import io.shmring.spark.request.SidecarTask;
import io.shmring.spark.request.Signature;
import java.util.List;
import java.util.Optional;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Distribution;
import org.apache.spark.sql.execution.ExplainUtils;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.reflect.ClassTag;

/**
 * Functions over rings in a plan, of a sidecar or of Spark's own Python workers: each task sends its
 * rows over the ring and takes the answers. Spark copies a node through its public constructor, whose
 * arguments are the product's elements.
 */
abstract class SidecarNode extends SparkPlan {
  private static final long serialVersionUID = 1L;

  private final String name;
  final boolean givesColumns;
  private transient Metrics metrics;

  /**
   * @param name as plans show it
   * @param givesColumns whether what is above takes the answers' columns, each batch until the next
   */
  SidecarNode(String name, boolean givesColumns) {
    this.name = name;
    this.givesColumns = givesColumns;
  }

  /** Whom its tasks ask. */
  abstract Call call();

  /** What is sent, and what comes of the answers. */
  abstract Signature signature(SparkTypes types);

  /** The constructor's arguments, in order. */
  abstract List<Object> elements();

  /** Columns that are not the children's. */
  List<Attribute> produced() {
    return CollectionConverters.asJava(output());
  }

  /** The same node for what takes columns; empty if it has only rows. */
  Optional<SparkPlan> givingColumns() {
    return Optional.empty();
  }

  /** Spark's own node, where children must lie as that one knows: its classes differ between versions. */
  Optional<SparkPlan> sparks() {
    return Optional.empty();
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

  /** What it gives: its rows, or their columns. */
  abstract <R> RDD<R> execute(SidecarTask.Output<R> output);

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
    SQLConf conf = conf();
    SparkTypes types = new SparkTypes(conf.sessionLocalTimeZone(), conf.arrowUseLargeVarTypes());
    return new SidecarTask<>(
        call(), signature(types), kind, output, conf.arrowMaxRecordsPerBatch(), known());
  }

  /** How the columns of groups' answers find their places. */
  final ColumnMapping mappingOfGroups() {
    return conf().pandasGroupedMapAssignColumnsByName()
        ? ColumnMapping.BY_NAME
        : ColumnMapping.BY_PLACE;
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

  /** For explain("formatted"), as Spark's own nodes have it. */
  @Override
  public final String verboseStringWithOperatorId() {
    List<SparkPlan> children = CollectionConverters.asJava(children());
    StringBuilder text = new StringBuilder("\n" + formattedNodeName() + "\n");
    for (int i = 0; i < children.size(); i++) {
      String input = children.size() == 1 ? "Input" : i == 0 ? "Left output" : "Right output";
      text.append(ExplainUtils.generateFieldString(input, children.get(i).output())).append("\n");
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
}
