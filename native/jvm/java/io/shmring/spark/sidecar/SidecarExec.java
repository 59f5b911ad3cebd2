package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.SidecarCall;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.MapSignature;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** mapInArrow of a sidecar. */
public final class SidecarExec extends MapNode {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;

  public SidecarExec(
      SidecarCall call,
      Seq<Attribute> output,
      boolean isBarrier,
      boolean givesColumns,
      SparkPlan child) {
    super(call.nodeName(), output, isBarrier, givesColumns, child);
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
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new SidecarExec(call, output, isBarrier, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of("mapInArrow", call, output).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(call, output, isBarrier, givesColumns, child());
  }
}
