package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Groups.FrameSide;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdtfSignature;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.PythonUDTF;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** A UDTF in Spark's own Python workers: some of the child's columns, and its own beside them. */
public final class PythonUdtfExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private final PythonUDTF function;
  private final Seq<Attribute> kept;
  private final Seq<Attribute> results;
  private final Option<String> artifacts;

  /**
   * @param kept of the child's columns, beside the results
   * @param artifacts of the query, by their uuid
   */
  public PythonUdtfExec(
      PythonUDTF function,
      Seq<Attribute> kept,
      Seq<Attribute> results,
      Option<String> artifacts,
      SparkPlan child) {
    super("ArrowEvalPythonUDTF over rings", false, child);
    this.function = function;
    this.kept = kept;
    this.results = results;
    this.artifacts = artifacts;
  }

  @Override
  Call call() {
    return PythonCalls.ofUdfs(List.of(function), artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    return new UdtfSignature(
        FrameSide.expressions(PythonCalls.arguments(List.of(function))),
        child().output(),
        kept,
        results,
        types);
  }

  @Override
  List<Attribute> produced() {
    return CollectionConverters.asJava(results);
  }

  @Override
  public Seq<Attribute> output() {
    List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(kept));
    output.addAll(produced());
    return CollectionConverters.asScala(output).toList();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new PythonUdtfExec(function, kept, results, artifacts, children.head());
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(List.<Object>of(function, kept, results).iterator());
  }

  @Override
  List<Object> elements() {
    return List.of(function, kept, results, artifacts, child());
  }
}
