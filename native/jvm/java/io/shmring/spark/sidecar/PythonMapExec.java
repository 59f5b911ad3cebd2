package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.MapSignature.PythonMapSignature;
import io.shmring.spark.request.Signature;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** mapInArrow or mapInPandas of any function, in Spark's own Python workers. */
public final class PythonMapExec extends MapNode {
  private static final long serialVersionUID = 1L;

  private final String name;
  private final PythonUDF function;
  private final Option<String> artifacts;

  /**
   * @param name as plans show it
   * @param artifacts of the query, by their uuid
   */
  public PythonMapExec(
      String name,
      PythonUDF function,
      Seq<Attribute> output,
      boolean isBarrier,
      Option<String> artifacts,
      boolean givesColumns,
      SparkPlan child) {
    super(name, output, isBarrier, givesColumns, child);
    this.name = name;
    this.function = function;
    this.artifacts = artifacts;
  }

  @Override
  Call call() {
    return PythonCalls.ofFrames(function, new int[] {0}, artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    return new PythonMapSignature(List.of(child().schema()), schema(), types);
  }

  @Override
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new PythonMapExec(name, function, output, isBarrier, artifacts, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(function, output, isBarrier).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(name, function, output, isBarrier, artifacts, givesColumns, child());
  }
}
