package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.PythonMapSignature;
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

  private final PythonUDF function;
  private final Option<String> artifacts;

  /**
   * @param artifacts of the query, by their uuid
   */
  public PythonMapExec(
      PythonUDF function,
      Seq<Attribute> output,
      boolean isBarrier,
      Option<String> artifacts,
      boolean givesColumns,
      SparkPlan child) {
    super(PythonCalls.nameOf(function), output, isBarrier, givesColumns, child);
    this.function = function;
    this.artifacts = artifacts;
  }

  @Override
  Call call() {
    return PythonCalls.ofRows(function, child().schema(), artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    return new PythonMapSignature(child().schema(), schema(), types);
  }

  @Override
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new PythonMapExec(function, output, isBarrier, artifacts, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(function, output, isBarrier).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(function, output, isBarrier, artifacts, givesColumns, child());
  }
}
