package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameInput;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.MapSignature.PythonMapSignature;
import io.shmring.spark.request.SidecarTask;
import io.shmring.spark.request.Signature;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.FlatMapCoGroupsInArrowExec;
import org.apache.spark.sql.execution.python.FlatMapGroupsInArrowExec;
import org.apache.spark.sql.execution.python.PandasGroupUtils;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/** A function of groups, or of cogroups of two children, in Spark's own Python workers. */
public final class PythonGroupsExec extends SidecarNode {
  private static final long serialVersionUID = 1L;

  private final String name;
  private final PythonUDF function;
  private final Seq<Seq<Attribute>> keys;
  private final Seq<Attribute> output;
  private final Option<String> artifacts;
  private final Seq<SparkPlan> children;

  /**
   * @param name as plans show it
   * @param keys of each child
   * @param artifacts of the query, by their uuid
   */
  public PythonGroupsExec(
      String name,
      PythonUDF function,
      Seq<Seq<Attribute>> keys,
      Seq<Attribute> output,
      Option<String> artifacts,
      boolean givesColumns,
      Seq<SparkPlan> children) {
    super(name, givesColumns);
    this.name = name;
    this.function = function;
    this.keys = keys;
    this.output = output;
    this.artifacts = artifacts;
    this.children = children;
  }

  /** What goes of a child's rows, as Spark tells it. */
  static FrameSide side(Seq<Attribute> keys, Seq<Attribute> output) {
    return FrameSide.of(
        keys,
        output,
        CollectionConverters.asJava(PandasGroupUtils.resolveArgOffsets(output, keys)._1()));
  }

  @Override
  Call call() {
    int[] places = // where keys and values stand among what goes
        IntStream.range(0, children.size())
            .mapToObj(
                i -> PandasGroupUtils.resolveArgOffsets(children.apply(i).output(), keys.apply(i)))
            .flatMapToInt(sent -> IntStream.of(sent._2()))
            .toArray();
    return PythonCalls.ofFrames(function, places, artifacts);
  }

  private List<FrameSide> sides() {
    return IntStream.range(0, children.size())
        .mapToObj(i -> side(keys.apply(i), children.apply(i).output()))
        .toList();
  }

  @Override
  Signature signature(SparkTypes types) {
    return new PythonMapSignature(
        sides().stream().map(FrameSide::sent).toList(), schema(), types);
  }

  @Override
  <R> RDD<R> execute(SidecarTask.Output<R> output) {
    List<FrameSide> sides = sides();
    RDD<InternalRow> first = children.head().execute();
    if (sides.size() == 1) {
      return first.mapPartitions(
          task(
              (rows, passage) ->
                  new FrameInput(
                      List.of(CollectionConverters.asScala(rows)), sides, (key, group) -> group),
              output),
          false,
          given());
    }
    SidecarTask<Iterator<InternalRow>, R> task =
        task(
            (both, passage) -> new FrameInput(
                    List.of(both.next(), both.next()), sides, (key, group) -> group),
            output);
    return first.zipPartitions(
        children.last().execute(),
        new SidecarCogroupsExec.Together<>(task),
        ClassTag$.MODULE$.apply(InternalRow.class),
        given());
  }

  @Override
  Optional<SparkPlan> sparks() {
    return Optional.of(
        children.size() == 1
        ? new FlatMapGroupsInArrowExec(keys.head(), function, output, children.head())
        : new FlatMapCoGroupsInArrowExec(
            keys.head(), keys.last(), function, output, children.head(), children.last()));
  }

  @Override
  public Partitioning outputPartitioning() {
    return children.head().outputPartitioning();
  }

  @Override
  public Seq<Attribute> output() {
    return output;
  }

  @Override
  public Seq<SparkPlan> children() {
    return children;
  }

  private SparkPlan copy(boolean givesColumns, Seq<SparkPlan> children) {
    return new PythonGroupsExec(name, function, keys, output, artifacts, givesColumns, children);
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.toList());
  }

  @Override
  Optional<SparkPlan> givingColumns() {
    return Optional.of(copy(true, children));
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(function, keys, output).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(name, function, keys, output, artifacts, givesColumns, children);
  }
}
