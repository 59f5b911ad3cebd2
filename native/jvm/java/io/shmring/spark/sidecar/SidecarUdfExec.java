package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call;
import io.shmring.spark.request.Input;
import io.shmring.spark.request.SidecarCall;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.Told;
import io.shmring.spark.request.UdfSignature;
import io.shmring.spark.request.UdfUse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs of a sidecar: the child's columns, and the results beside them. */
public final class SidecarUdfExec extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private static final Integer ABSENT = -1; // computed from them

  private final SidecarCall call;
  private final List<UdfUse> uses;
  private final Seq<Expression> arguments;
  private final Seq<Attribute> results;

  public SidecarUdfExec(
      SidecarCall call,
      List<UdfUse> uses,
      Seq<Expression> arguments,
      Seq<Attribute> results,
      boolean givesColumns,
      SparkPlan child) {
    super(call.nodeName(), givesColumns, child);
    this.call = call;
    this.uses = uses;
    this.arguments = arguments;
    this.results = results;
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
        takesColumns() ? places() : List.of(),
        child().output(),
        child().schema(),
        UdfSignature.types(results),
        types,
        Told.ofUdfs(conf()));
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
    return CollectionConverters.asJava(arguments).stream()
        .map(each -> each instanceof Attribute column ? columns.indexOf(column.exprId()) : ABSENT)
        .toList();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child().outputOrdering();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new SidecarUdfExec(call, uses, arguments, results, givesColumns, children.head());
  }

  /** What waits beside the results is what came: rows cannot be given as columns. */
  @Override
  Input.Kind<InternalRow> rows() {
    return rowsUnlessColumnsAreGiven();
  }

  /** Over rows it has rows: they wait for their results. */
  @Override
  Optional<SparkPlan> givingColumns() {
    return takesColumns()
        ? Optional.of(new SidecarUdfExec(call, uses, arguments, results, true, child()))
        : Optional.empty();
  }

  @Override
  public Iterator<Object> stringArgs() {
    return CollectionConverters.asScala(
        List.<Object>of("udf", call, CollectionConverters.asScala(shown()).toSeq()).iterator());
  }

  /** For each UDF its result, and what the sidecar's function is given under which names. */
  private List<String> shown() {
    List<String> shown = new ArrayList<>();
    for (int i = 0; i < uses.size(); i++) {
      UdfUse use = uses.get(i);
      List<String> given = new ArrayList<>();
      for (int k = 0; k < use.names().size(); k++) {
        given.add(arguments.apply(use.arguments().get(k)) + " AS " + use.names().get(k));
      }
      shown.add(String.format("%s: (%s)", results.apply(i), String.join(", ", given)));
    }
    return shown;
  }

  @Override
  List<Object> elements() {
    return List.of(call, uses, arguments, results, givesColumns, child());
  }
}
