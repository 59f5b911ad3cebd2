package io.shmring.spark.functions;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeBlock;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprValue;
import org.apache.spark.sql.catalyst.expressions.codegen.FalseLiteral$;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.ColumnarToRowTransition;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.ProjectExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.UnaryExecNode;
import org.apache.spark.sql.execution.joins.BroadcastHashJoinExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Turns columns into rows, as Spark's ColumnarToRow does, but in two places where Spark's class
 * cannot be used:
 *
 * <ul>
 *   <li>Above a FunctionNode that gives columns, because other extensions replace Spark's class by
 *       nodes that can read only the extension's own columns (Comet's EliminateRedundantTransitions
 *       does).
 *   <li>In a stage of generated code that ends in {@link RowsToArrowExec}. There a RowSink copies
 *       the columns that the stage does not change, so the generated code has to tell the RowSink
 *       each batch and each row's number.
 * </ul>
 */
public final class ColumnsToRowsExec extends ProductPlan implements UnaryExecNode, CodegenSupport {
  private static final String BATCH = ColumnarBatch.class.getName();

  private final ColumnarToRowExec rows;

  public ColumnsToRowsExec(SparkPlan child) {
    this.rows = new ColumnarToRowExec(child);
  }

  /**
   * Returns the plan with a node of this class in place of Spark's ColumnarToRow, if only filters,
   * projections and joins with broadcast rows stand above ColumnarToRow. Each row that these nodes
   * give is then made from one row of ColumnarToRow's batches, so that a RowSink can copy the row's
   * unchanged columns from the batches.
   */
  static SparkPlan in(SparkPlan node) {
    if (node instanceof ColumnarToRowExec rows) {
      return new ColumnsToRowsExec(rows.child());
    }
    int place = place(node);
    if (place < 0) {
      return node;
    }
    List<SparkPlan> children = new ArrayList<>(CollectionConverters.asJava(node.children()));
    children.set(place, in(children.get(place)));
    return node.withNewChildren(FunctionNode.seq(children));
  }

  /**
   * Returns, for each of a node's columns, the number of the same column in the batches of the
   * ColumnsToRowsExec below the node; -1 if the column is computed in between, or there is no
   * ColumnsToRowsExec. The method follows each column down from node to node, because an id that
   * occurs in both places may not mean the same column: a projection can give a column's id to a
   * value that it computes (Spark's masks of columns do), or to several columns.
   */
  static int[] passedOn(SparkPlan node) {
    int[] numbers = new int[node.output().size()];
    if (node instanceof ColumnsToRowsExec) {
      Arrays.setAll(numbers, i -> i);
      return numbers;
    }
    Arrays.fill(numbers, -1);
    int place = place(node);
    if (place < 0) {
      return numbers;
    }
    SparkPlan child = node.children().apply(place);
    int[] below = passedOn(child);
    if (node instanceof ProjectExec project) {
      var places = package$.MODULE$.AttributeSeq(child.output());
      List<NamedExpression> columns = CollectionConverters.asJava(project.projectList());
      Arrays.setAll(
          numbers,
          i ->
              (columns.get(i) instanceof Alias alias ? alias.child() : columns.get(i))
                      instanceof Attribute same
                  ? below[places.indexOf(same.exprId())]
                  : -1);
    } else {
      // A filter's columns are its child's columns. A join's columns are all columns of its left
      // child, then all columns of its right child.
      int first = place == 0 ? 0 : node.children().head().output().size();
      System.arraycopy(below, 0, numbers, first, below.length);
    }
    return numbers;
  }

  /** Returns the number of the child whose rows a node passes on; -1 if there is none. */
  private static int place(SparkPlan node) {
    if (node instanceof BroadcastHashJoinExec join) {
      return join.streamedPlan() == join.left() ? 0 : 1;
    }
    return node instanceof FilterExec || node instanceof ProjectExec ? 0 : -1;
  }

  @Override
  public SparkPlan child() {
    return rows.child();
  }

  @Override
  public Seq<SparkPlan> children() {
    return rows.children();
  }

  @Override
  public SparkPlan withNewChildInternal(SparkPlan child) {
    return over(child);
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return over(children.head());
  }

  /**
   * Returns a node of this class over a child. A child that is itself a transition to rows is left
   * out, and its own child taken instead: another extension's rule has inserted the transition
   * (Comet's RevertNativeForTransitionHeavyStages does).
   */
  private static SparkPlan over(SparkPlan child) {
    return new ColumnsToRowsExec(
        child instanceof ColumnarToRowTransition rows ? rows.child() : child);
  }

  @Override
  public String nodeName() {
    return rows.nodeName();
  }

  @Override
  public Seq<Attribute> output() {
    return rows.output();
  }

  @Override
  public Partitioning outputPartitioning() {
    return rows.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return rows.outputOrdering();
  }

  @Override
  public Map<String, SQLMetric> metrics() {
    return rows.metrics();
  }

  @Override
  public RDD<InternalRow> doExecute() {
    return rows.execute();
  }

  // --- generated code: made by this class if a RowSink copies columns, else by Spark's
  // --- ColumnarToRow in `rows`. So `rows` gets the parent that Spark sets for this node.

  @Override
  public CodegenSupport parent() {
    return rows.parent();
  }

  @Override
  public void parent_$eq(CodegenSupport parent) {
    rows.parent_$eq(parent);
  }

  @Override
  public Seq<RDD<InternalRow>> inputRDDs() {
    return rows.inputRDDs();
  }

  @Override
  public boolean canCheckLimitNotReached() {
    return rows.canCheckLimitNotReached();
  }

  @Override
  public String doProduce(CodegenContext context) {
    // Go up through the parents to the last node of the stage of generated code. Spark has set
    // them: before a node asks its child for code, the node becomes the child's parent.
    CodegenSupport above = parent();
    while (place((SparkPlan) above) >= 0) {
      above = above.parent();
    }
    return above instanceof RowsToArrowExec end && end.copies()
        ? produced(context, RowsToArrowExec.SINK)
        : rows.doProduce(context);
  }

  /**
   * Returns code that reads a column's value only at the place where the nodes above need the
   * value.
   */
  private String produced(CodegenContext context, String sink) {
    String batch = context.addMutableState(BATCH, "batch", name -> "", true, true);
    String next = context.addMutableState("int", "next", name -> "", true, true);
    String row = context.freshName("row");
    String advance = context.freshName("advance");
    StringBuilder taken = new StringBuilder();
    List<ExprCode> cells = new ArrayList<>();
    List<Attribute> columns = CollectionConverters.asJava(output());
    for (int i = 0; i < columns.size(); i++) {
      int column = i;
      String type =
          child().vectorTypes().isDefined()
              ? child().vectorTypes().get().apply(column)
              : ColumnVector.class.getName();
      String vector = context.addMutableState(type, "column", name -> "", true, true);
      taken.append("%s = (%s) %s.column(%d);\n".formatted(vector, type, batch, i));
      cells.add(cell(context, columns.get(i), vector, row));
    }
    context.currentVars_$eq(null);
    context.addNewFunction(
        advance,
        """
        private void %s() {
          %s = %s.advance(inputs[0], %s, %s);
          %s = 0;
          if (%s != null) {
            %s
          }
        }
        """
            .formatted(
                advance,
                batch,
                sink,
                metricTerm(context, "numInputBatches"),
                metricTerm(context, "numOutputRows"),
                next,
                batch,
                taken),
        true);
    return """
        if (%1$s == null) {
          %2$s();
        }
        while (%3$s %1$s != null) {
          int %4$s = %1$s.numRows();
          for (int %5$s = %6$s; %5$s < %4$s; %5$s++) {
            %7$s.read(%5$s);
            %8$s
            if (shouldStop()) {
              %6$s = %5$s + 1;
              return;
            }
          }
          %2$s();
        }
        """
        .formatted(
            batch,
            advance,
            limitNotReachedCond(),
            context.freshName("rows"),
            row,
            next,
            sink,
            consume(context, FunctionNode.seq(cells), null).strip());
  }

  private static ExprCode cell(
      CodegenContext context, Attribute column, String vector, String row) {
    DataType type = column.dataType();
    String value = context.freshName("value");
    String read = CodeGenerator.getValueFromVector(vector, type, row);
    String declared = "%s %s".formatted(CodeGenerator.javaType(type), value);
    if (!column.nullable()) {
      return cell("%s = %s;".formatted(declared, read), FalseLiteral$.MODULE$, value, type);
    }
    String isNull = context.freshName("isNull");
    return cell(
        "boolean %1$s = %2$s.isNullAt(%3$s);\n%4$s = %1$s ? %5$s : (%6$s);"
            .formatted(isNull, vector, row, declared, defaultValue(type), read),
        JavaCode.isNullVariable(isNull),
        value,
        type);
  }

  private static String defaultValue(DataType type) {
    return CodeGenerator.defaultValue(type, false);
  }

  private static ExprCode cell(String code, ExprValue isNull, String value, DataType type) {
    return ExprCode.apply(
        new CodeBlock(FunctionNode.seq(List.of(code)), FunctionNode.seq(List.of())),
        isNull,
        JavaCode.variable(value, type));
  }

  @Override
  List<Object> elements() {
    return List.of(child());
  }
}
