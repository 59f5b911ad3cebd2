package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.CogroupInput;
import io.shmring.spark.request.Groups.CogroupSignature;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.Groups.GroupInput;
import io.shmring.spark.request.Groups.GroupSignature;
import io.shmring.spark.request.MapSignature;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** What sidecars do in a plan. */
final class SidecarNodes {
  private SidecarNodes() {}

  /** mapInArrow of a sidecar. */
  public static final class SidecarExec extends SidecarNode.Mapping {
    private final SidecarCall call;

    public SidecarExec(
        SidecarCall call,
        Seq<Attribute> output,
        boolean isBarrier,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(call.nodeName(), output, isBarrier, givesColumns, children);
      this.call = call;
    }

    @Override
    Call call() {
      return call;
    }

    @Override
    Signature signature(SparkTypes types) {
      return new MapSignature(
          "mapInArrow", ColumnMapping.BY_PLACE, child().schema(), schema(), types);
    }

    @Override
    List<Object> shown() {
      return List.of("mapInArrow", call, output);
    }

    @Override
    List<Object> own() {
      return List.of(call, output, isBarrier);
    }
  }

  /** applyInArrow of groups, or of cogroups, by a sidecar. */
  public static final class SidecarGroupsExec extends SidecarNode.Groups {
    private final SidecarCall call;

    /**
     * @param function of one child, whose arguments are the columns that go
     */
    public SidecarGroupsExec(
        SidecarCall call,
        PythonUDF function,
        Seq<Seq<Attribute>> keys,
        Seq<Attribute> output,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(call.nodeName(), function, keys, output, givesColumns, children);
      this.call = call;
    }

    /** The types of the columns of one child that go; a column of the frame keeps its name. */
    static StructType sent(PythonUDF function) {
      return FrameSide.types(CollectionConverters.asJava(function.children()));
    }

    /**
     * The frame's own columns go of each of two children.
     *
     * @param output the child's: Spark has put the keys before the frame's own columns, which may
     *     have them again
     */
    static FrameSide side(Seq<Attribute> keys, Seq<Attribute> output) {
      return FrameSide.of(
          keys, output, CollectionConverters.asJava(output).subList(keys.size(), output.size()));
    }

    @Override
    Call call() {
      return call;
    }

    private FrameSide left() {
      return side(keys.head(), children().head().output());
    }

    private FrameSide right() {
      return side(keys.last(), children().last().output());
    }

    @Override
    Signature signature(SparkTypes types) {
      if (!isOfOne()) {
        return new CogroupSignature(mapping(), left().sent(), right().sent(), schema(), types);
      }
      MapSignature map =
          new MapSignature("applyInArrow", mapping(), sent(function), schema(), types);
      return new GroupSignature(map, function.children(), children().head().output());
    }

    @Override
    Input.Kind<Iterator<InternalRow>> groups() {
      if (!isOfOne()) {
        FrameSide left = left();
        FrameSide right = right();
        return (rows, handler) -> new CogroupInput(rows, left, right);
      }
      Seq<Expression> by = FrameSide.expressions(CollectionConverters.asJava(keys.head()));
      Seq<Attribute> columns = children().head().output();
      return (rows, handler) ->
          new GroupInput(GroupedIterator.apply(rows.next(), by, columns), handler);
    }

    @Override
    List<Object> shown() {
      List<Object> shown = new ArrayList<>(List.of("applyInArrow", call));
      shown.addAll(CollectionConverters.asJava(keys));
      shown.add(output);
      return shown;
    }

    @Override
    List<Object> own() {
      return List.of(call, function, keys, output);
    }
  }

  /** UDFs of a sidecar: the child's columns, and the results beside them. */
  public static final class SidecarUdfExec extends SidecarNode.Udfs {
    private final SidecarCall call;
    private final List<UdfSignature.Use> uses;
    private final Seq<Expression> arguments;

    public SidecarUdfExec(
        SidecarCall call,
        List<UdfSignature.Use> uses,
        Seq<Expression> arguments,
        Seq<Attribute> results,
        boolean givesColumns,
        Seq<SparkPlan> children) {
      super(call.nodeName(), results, givesColumns, children);
      this.call = call;
      this.uses = uses;
      this.arguments = arguments;
    }

    @Override
    Call call() {
      return call;
    }

    @Override
    Signature signature(SparkTypes types) {
      return new UdfSignature(
          uses,
          arguments,
          sentPlaces(),
          child().output(),
          child().schema(),
          UdfSignature.types(results),
          types,
          false);
    }

    @Override
    List<Expression> arguments() {
      return CollectionConverters.asJava(arguments);
    }

    /** For each UDF its result, and what the sidecar's function is given under which names. */
    @Override
    List<Object> shown() {
      List<String> shown = new ArrayList<>();
      for (int i = 0; i < uses.size(); i++) {
        UdfSignature.Use use = uses.get(i);
        List<String> given = new ArrayList<>();
        for (int k = 0; k < use.names().size(); k++) {
          given.add(arguments.apply(use.arguments().get(k)) + " AS " + use.names().get(k));
        }
        shown.add(String.format("%s: (%s)", results.apply(i), String.join(", ", given)));
      }
      return List.of("udf", call, CollectionConverters.asScala(shown).toSeq());
    }

    @Override
    List<Object> own() {
      return List.of(call, uses, arguments, results);
    }
  }
}
