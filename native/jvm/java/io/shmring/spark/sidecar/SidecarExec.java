package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * mapInArrow of a sidecar, without Python: each task sends its rows over the ring and takes the
 * answers. Spark copies it through its public constructor, whose arguments are the product's elements.
 */
public final class SidecarExec extends SparkPlan {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final Seq<Attribute> output;
  private final boolean isBarrier;
  private final SparkPlan child;
  private transient SidecarMetrics metrics;

  public SidecarExec(SidecarCall call, Seq<Attribute> output, boolean isBarrier, SparkPlan child) {
    this.call = call;
    this.output = output;
    this.isBarrier = isBarrier;
    this.child = child;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    SQLConf conf = conf();
    SidecarTask task =
        new SidecarTask(
            call,
            child.schema(),
            schema(),
            new SparkTypes(conf.sessionLocalTimeZone(), conf.arrowUseLargeVarTypes()),
            conf.arrowMaxRecordsPerBatch(),
            known());
    ClassTag<InternalRow> rows = ClassTag$.MODULE$.apply(InternalRow.class);
    RDD<InternalRow> input = child.execute();
    return isBarrier
        ? input.barrier().mapPartitions(task, false, rows)
        : input.mapPartitions(task, false, rows);
  }

  private synchronized SidecarMetrics known() {
    if (metrics == null) {
      metrics = SidecarMetrics.make(sparkContext());
    }
    return metrics;
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return known().byName();
  }

  @Override
  public Seq<Attribute> output() {
    return output;
  }

  @Override
  public AttributeSet producedAttributes() {
    List<Expression> produced = new ArrayList<>(CollectionConverters.asJava(output));
    return AttributeSet$.MODULE$.apply(CollectionConverters.asScala(produced));
  }

  @Override
  public Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public Seq<SparkPlan> children() {
    return CollectionConverters.asScala(List.of(child)).toList();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new SidecarExec(call, output, isBarrier, children.head());
  }

  @Override
  public String nodeName() {
    return "Sidecar " + call.sidecar();
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(call, output).iterator());
  }

  @Override
  public int productArity() {
    return elements().size();
  }

  @Override
  public Object productElement(int n) {
    return elements().get(n);
  }

  private List<Object> elements() {
    return Arrays.asList(call, output, isBarrier, child);
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof SidecarExec;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof SidecarExec plan && elements().equals(plan.elements());
  }

  @Override
  public int hashCode() {
    return Objects.hash(call, output, isBarrier, child);
  }
}
