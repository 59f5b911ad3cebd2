package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.CogroupInput;
import io.shmring.spark.request.Groups.CogroupSignature;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.SidecarTask;
import io.shmring.spark.request.Signature;
import java.io.Serializable;
import java.util.List;
import java.util.Optional;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.FlatMapCoGroupsInArrowExec;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction2;

/** applyInArrow of cogroups, by a sidecar. */
public final class SidecarCogroupsExec extends SidecarNode {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final Seq<Attribute> leftKeys;
  private final Seq<Attribute> rightKeys;
  private final PythonUDF function;
  private final Seq<Attribute> output;
  private final SparkPlan left;
  private final SparkPlan right;

  public SidecarCogroupsExec(
      SidecarCall call,
      Seq<Attribute> leftKeys,
      Seq<Attribute> rightKeys,
      PythonUDF function,
      Seq<Attribute> output,
      boolean givesColumns,
      SparkPlan left,
      SparkPlan right) {
    super(call.nodeName(), givesColumns);
    this.call = call;
    this.leftKeys = leftKeys;
    this.rightKeys = rightKeys;
    this.function = function;
    this.output = output;
    this.left = left;
    this.right = right;
  }

  @Override
  Call call() {
    return call;
  }

  @Override
  Signature signature(SparkTypes types) {
    return new CogroupSignature(
        mappingOfGroups(), leftSide().sent(), rightSide().sent(), schema(), types);
  }

  private FrameSide leftSide() {
    return side(leftKeys, left.output());
  }

  private FrameSide rightSide() {
    return side(rightKeys, right.output());
  }

  /**
   * The frame's own columns go.
   *
   * @param output the child's: Spark has put the keys before the frame's own columns, which may have
   *     them again
   */
  static FrameSide side(Seq<Attribute> keys, Seq<Attribute> output) {
    return FrameSide.of(
        keys, output, CollectionConverters.asJava(output).subList(keys.size(), output.size()));
  }

  @Override
  <R> RDD<R> execute(SidecarTask.Output<R> output) {
    FrameSide leftSide = leftSide();
    FrameSide rightSide = rightSide();
    Together<R> task =
        new Together<>(
            task((rows, handler) -> new CogroupInput(rows, leftSide, rightSide), output));
    return left.execute()
        .zipPartitions(
            right.execute(),
            task,
            ClassTag$.MODULE$.apply(InternalRow.class),
            given());
  }

  /** Gives a task both children's partitions. */
  static final class Together<R>
      extends AbstractFunction2<Iterator<InternalRow>, Iterator<InternalRow>, Iterator<R>>
      implements Serializable {
    private static final long serialVersionUID = 1L;

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
  Optional<SparkPlan> sparks() {
    return Optional.of(
        new FlatMapCoGroupsInArrowExec(leftKeys, rightKeys, function, output, left, right));
  }

  @Override
  public Partitioning outputPartitioning() {
    return left.outputPartitioning();
  }

  @Override
  public Seq<Attribute> output() {
    return output;
  }

  @Override
  public Seq<SparkPlan> children() {
    return CollectionConverters.asScala(List.of(left, right)).toList();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new SidecarCogroupsExec(
        call,
        leftKeys,
        rightKeys,
        function,
        output,
        givesColumns,
        children.apply(0),
        children.apply(1));
  }

  @Override
  Optional<SparkPlan> givingColumns() {
    return Optional.of(
        new SidecarCogroupsExec(
            call, leftKeys, rightKeys, function, output, true, left, right));
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(
        List.<Object>of("applyInArrow", call, leftKeys, rightKeys, output).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(call, leftKeys, rightKeys, function, output, givesColumns, left, right);
  }
}
