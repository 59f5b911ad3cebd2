package io.shmring.spark.sidecar;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Batches.Input;
import io.shmring.spark.request.UdfSignature;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.execution.SparkPlan;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** UDFs: the child's columns, and the results beside them. */
abstract class UdfNode extends SidecarUnaryNode {
  private static final long serialVersionUID = 1L;

  private static final Integer ABSENT = -1; // computed from them

  final Seq<Attribute> results;

  UdfNode(String name, Seq<Attribute> results, boolean givesColumns, SparkPlan child) {
    super(name, givesColumns, child);
    this.results = results;
  }

  /** What is sent for all of the UDFs. */
  abstract List<Expression> arguments();

  abstract SparkPlan copy(boolean givesColumns, SparkPlan child);

  @Override
  public final Seq<Attribute> output() {
    List<Attribute> columns = new ArrayList<>(CollectionConverters.asJava(child().output()));
    columns.addAll(produced());
    return CollectionConverters.asScala(columns).toList();
  }

  @Override
  final List<Attribute> produced() {
    return CollectionConverters.asJava(results);
  }

  @Override
  final boolean sendsColumns() {
    return !places().contains(ABSENT)
        && SparkTypes.unsupported(UdfSignature.types(child().output())).isEmpty();
  }

  /** Where the arguments stand among the child's columns, if these are sent. */
  final List<Integer> sentPlaces() {
    return takesColumns() ? places() : List.of();
  }

  private List<Integer> places() {
    List<ExprId> columns =
        CollectionConverters.asJava(child().output()).stream().map(Attribute::exprId).toList();
    return arguments().stream()
        .map(each -> each instanceof Attribute column ? columns.indexOf(column.exprId()) : ABSENT)
        .toList();
  }

  @Override
  public final Seq<SortOrder> outputOrdering() {
    return child().outputOrdering();
  }

  @Override
  public final SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return copy(givesColumns, children.head());
  }

  /**
   * What waits beside the results is what came: rows cannot be given as columns.
   *
   * @throws IllegalStateException if another extension's rule has put rows below this node since
   */
  @Override
  final Input.Kind<InternalRow> rows() {
    if (givesColumns) {
      throw new IllegalStateException(
          String.format(
              "%s is to give columns, and %s below it gives rows: a rule of another extension has"
                  + " replaced its child. Set %s=false, or leave that extension out",
              nodeName(), child().nodeName(), SidecarStrategy.DIRECT));
    }
    return super.rows();
  }

  /** Over rows it has rows: they wait for their results. */
  @Override
  final Optional<SparkPlan> givingColumns() {
    return takesColumns() ? Optional.of(copy(true, child())) : Optional.empty();
  }
}
