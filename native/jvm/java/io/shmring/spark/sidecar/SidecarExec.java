package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.MapSignature;
import io.shmring.spark.request.SidecarCall;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.Told;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** mapInArrow or mapInPandas of a sidecar. */
public final class SidecarExec extends MapNode {
  private static final long serialVersionUID = 1L;

  private final SidecarCall call;
  private final String method;

  /**
   * @param method of the DataFrame, as the user called it
   */
  public SidecarExec(
      SidecarCall call,
      String method,
      Seq<Attribute> output,
      boolean isBarrier,
      boolean givesColumns,
      SparkPlan child) {
    super(call.nodeName(), output, isBarrier, givesColumns, child);
    this.call = call;
    this.method = method;
  }

  @Override
  Call call() {
    return call;
  }

  @Override
  Signature signature(SparkTypes types) {
    // Of batches a function needs to know nothing else.
    Map<String, String> told =
        method.equals("mapInArrow") ? Map.of() : Told.of(method, conf(), schema(), types);
    return new MapSignature(method, assigned(method), child().schema(), schema(), types, told);
  }

  @Override
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new SidecarExec(call, method, output, isBarrier, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(method, call, output).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(call, method, output, isBarrier, givesColumns, child());
  }
}
