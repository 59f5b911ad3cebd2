package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfSignature;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.execution.SparkPlan;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs in Spark's own Python workers: the child's columns, and the results beside them. */
public final class PythonUdfExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private static final Integer ABSENT = -1; // computed from them

  private final Seq<PythonUDF> udfs;
  private final Seq<Attribute> results;
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
    super("ArrowEvalPython over rings", givesColumns, child);
    this.udfs = udfs;
    this.results = results;
    this.artifacts = artifacts;
  }

  @Override
  Call call() {
    return PythonCalls.ofUdfs(CollectionConverters.asJava(udfs), artifacts);
  }

  @Override
  Signature signature(SparkTypes types) {
    return new UdfSignature(
        List.of(),
        CollectionConverters.asScala(arguments()).toList(),
        takesColumns() ? places() : List.of(),
        child().output(),
        child().schema(),
        UdfSignature.types(results),
        types,
        Map.of());
  }

  private List<Expression> arguments() {
    return PythonCalls.arguments(CollectionConverters.asJava(udfs));
  }

  @Override
  public Seq<Attribute> output() {
    List<Attribute> columns = new ArrayList<>(CollectionConverters.asJava(child().output()));
    columns.addAll(produced());
    return CollectionConverters.asScala(columns).toList();
  }

  @Override
  List<Attribute> produced() {
    return CollectionConverters.asJava(results);
  }

  @Override
  boolean sendsColumns() {
    return !places().contains(ABSENT)
        && SparkTypes.unsupported(UdfSignature.types(child().output())).isEmpty();
  }

  /** Where the arguments stand among the child's columns. */
  private List<Integer> places() {
    List<ExprId> columns =
        CollectionConverters.asJava(child().output()).stream().map(Attribute::exprId).toList();
    return arguments().stream()
        .map(each -> each instanceof Attribute column ? columns.indexOf(column.exprId()) : ABSENT)
        .toList();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child().outputOrdering();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.head());
  }

  /** What waits beside the results is what came: rows cannot be given as columns. */
  @Override
  Input.Kind<InternalRow> rows() {
    return rowsUnlessColumnsAreGiven();
  }

  /** Over rows it has rows: they wait for their results. */
  @Override
  Optional<SparkPlan> givingColumns() {
    return takesColumns() ? Optional.of(copy(true, child())) : Optional.empty();
  }

  private PythonUdfExec copy(boolean givesColumns, SparkPlan child) {
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
