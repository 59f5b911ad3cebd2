package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.Groups.GroupInput;
import io.shmring.spark.request.Groups.GroupSignature;
import io.shmring.spark.request.MapSignature;
import io.shmring.spark.request.Signature;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.FlatMapGroupsInArrowExec;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** applyInArrow of groups, by a sidecar. */
public final class SidecarGroupsExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final Seq<Attribute> keys;
  private final PythonUDF function;
  private final Seq<Attribute> output;

  /**
   * @param function whose arguments are the columns that go
   */
  public SidecarGroupsExec(
      SidecarCall call,
      Seq<Attribute> keys,
      PythonUDF function,
      Seq<Attribute> output,
      boolean givesColumns,
      SparkPlan child) {
    super(call.nodeName(), givesColumns, child);
    this.call = call;
    this.keys = keys;
    this.function = function;
    this.output = output;
  }

  /** The types of the columns that go; a column of the frame keeps its name. */
  static StructType sent(PythonUDF function) {
    return FrameSide.types(CollectionConverters.asJava(function.children()));
  }

  @Override
  Call call() {
    return call;
  }

  @Override
  Signature signature(SparkTypes types) {
    MapSignature map =
        new MapSignature("applyInArrow", mappingOfGroups(), sent(function), schema(), types);
    return new GroupSignature(map, function.children(), child().output());
  }

  @Override
  Input.Kind<InternalRow> rows() {
    Seq<Expression> by = FrameSide.expressions(CollectionConverters.asJava(keys));
    Seq<Attribute> columns = child().output();
    return (rows, handler) ->
        new GroupInput(
            GroupedIterator.apply(CollectionConverters.asScala(rows), by, columns), handler);
  }

  @Override
  Optional<SparkPlan> sparks() {
    return Optional.of(
        new FlatMapGroupsInArrowExec(keys, function, output, child()));
  }

  @Override
  public Seq<Attribute> output() {
    return output;
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new SidecarGroupsExec(
        call, keys, function, output, givesColumns, children.head());
  }

  @Override
  Optional<SparkPlan> givingColumns() {
    return Optional.of(
        new SidecarGroupsExec(call, keys, function, output, true, child()));
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of("applyInArrow", call, keys, output).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(call, keys, function, output, givesColumns, child());
  }
}
