package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs in Spark's own Python workers: the child's columns, and the results beside them. */
public final class PythonUdfExec extends UdfNode {
  private static final long serialVersionUID = 1L;

  private final Seq<PythonUDF> udfs;
  private final Option<String> artifacts;

  /**
   * @param artifacts of the query, by their uuid
   */
  public PythonUdfExec(
      Seq<PythonUDF> udfs,
      Seq<Attribute> results,
      Option<String> artifacts,
      boolean givesColumns,
      SparkPlan child) {
    super("ArrowEvalPython over rings", results, givesColumns, child);
    this.udfs = udfs;
    this.artifacts = artifacts;
  }

  @Override
  PythonCall call() {
    return PythonCalls.ofUdfs(CollectionConverters.asJava(udfs), artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    return new UdfSignature(
        List.of(),
        CollectionConverters.asScala(arguments()).toList(),
        sentPlaces(),
        child().output(),
        child().schema(),
        UdfSignature.types(results),
        types,
        call().isIterator());
  }

  @Override
  List<Expression> arguments() {
    return PythonCalls.arguments(CollectionConverters.asJava(udfs));
  }

  @Override
  SparkPlan copy(boolean givesColumns, SparkPlan child) {
    return new PythonUdfExec(udfs, results, artifacts, givesColumns, child);
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(udfs, results).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(udfs, results, artifacts, givesColumns, child());
  }
}
