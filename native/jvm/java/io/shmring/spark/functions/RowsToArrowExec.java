package io.shmring.spark.functions;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.DecodedBatches.Passed;
import io.shmring.spark.columns.DecodedBatches;
import io.shmring.spark.columns.RowSink;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.Platform;
import scala.Function1;
import scala.PartialFunction$;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Ends a stage whose generated code writes values straight into batches of a node over rings,
 * without rows, just as the code of Spark's aggregates uses values. If the stage's code is not
 * generated, this node gives the child's rows.
 */
public final class RowsToArrowExec extends SparkPlan implements CodegenSupport {
  private static final String SINK = RowSink.class.getName();

  // Columns that one method writes: the JVM does not compile a method of more than 8,000 bytes.
  private static final int COLUMNS_OF_METHOD = 16;

  private final SparkPlan child;
  private final Seq<Expression> computed;
  // Rows that a task has written since its last batch of columns. A task gets one copy, which the
  // generated code and the input share, because Spark sends both to the task together.
  private final Passed passed = new Passed();
  private CodegenSupport parent;
  private transient String sink; // name of the sink's variable in the generated code

  public RowsToArrowExec(SparkPlan child) {
    this(child, FunctionNode.seq(List.of()));
  }

  /**
   * @param computed deterministic expressions over the child's columns; the code writes their
   *     values after the child's columns
   */
  public RowsToArrowExec(SparkPlan child, Seq<Expression> computed) {
    this.child = child;
    this.computed = computed;
  }

  /** Whether generated code can write a child's rows into batches. */
  public static boolean takes(SparkPlan child) {
    SQLConf conf = child.conf();
    return conf.wholeStageEnabled()
        && !WholeStageCodegenExec.isTooManyFields(conf, child.schema())
        && BatchSizes.areKnown(child.schema());
  }

  @Override
  public String doProduce(CodegenContext context) {
    String counter = context.addReferenceObj("passed", passed, Passed.class.getCanonicalName());
    sink = // one sink, though the child may give rows at several places of the code
        context.addMutableState(
            SINK,
            "sink",
            name ->
                "%1$s = new %2$s(%3$d, %4$s); append(%1$s);"
                    .formatted(name, SINK, types().size(), counter),
            true,
            true);
    return ((CodegenSupport) child).produce(context, this);
  }

  @Override
  public Seq<RDD<InternalRow>> inputRDDs() {
    Seq<RDD<InternalRow>> inputs = ((CodegenSupport) child).inputRDDs();
    return inputs.size() == 1 && readsParquet(child)
        ? FunctionNode.seq(List.of(decoded(inputs.head(), passed)))
        : inputs;
  }

  /** Whether a stage's code reads batches of Spark's own Parquet reader. */
  private static boolean readsParquet(SparkPlan node) {
    if (node instanceof ColumnarToRowExec rows && rows.child() instanceof InputAdapter input) {
      return input.child() instanceof FileSourceScanExec scan
          && scan.relation().fileFormat() instanceof ParquetFileFormat;
    }
    return node instanceof CodegenSupport
        && !(node instanceof InputAdapter)
        && CollectionConverters.asJava(node.children()).stream()
            .anyMatch(RowsToArrowExec::readsParquet);
  }

  private static RDD<InternalRow> decoded(RDD<InternalRow> batches, Passed passed) {
    return batches.mapPartitions(
        (Function1<Iterator<InternalRow>, Iterator<InternalRow>> & Serializable)
            each ->
                CollectionConverters.asScala(
                    new DecodedBatches<>(CollectionConverters.asJava(each), passed)),
        true,
        ClassTag$.MODULE$.apply(InternalRow.class));
  }

  @Override
  public AttributeSet usedInputs() {
    return child.outputSet();
  }

  /** Returns the types of the columns that the code writes. */
  private List<DataType> types() {
    return Stream.of(child.output(), computed)
        .flatMap(each -> CollectionConverters.asJava(each).stream())
        .map(each -> ((Expression) each).dataType())
        .toList();
  }

  @Override
  public String doConsume(CodegenContext context, Seq<ExprCode> input, ExprCode row) {
    List<ExprCode> cells = new ArrayList<>(CollectionConverters.asJava(input));
    StringBuilder computing = new StringBuilder();
    context.currentVars_$eq(input);
    for (Expression each : CollectionConverters.asJava(computed)) {
      ExprCode cell = bound(each).genCode(context);
      computing.append(cell.code()).append("\n");
      cells.add(cell);
    }
    List<DataType> types = types();
    String at = context.freshName("at");
    StringBuilder bytes = new StringBuilder("%dL".formatted(fixedBytes(types.size())));
    StringBuilder writes = new StringBuilder();
    for (int i = 0; i < types.size(); i++) {
      DataType type = types.get(i);
      String value = cells.get(i).value().toString();
      String isNull = cells.get(i).isNull().toString();
      if (isBytes(type)) {
        String length = type instanceof StringType ? ".numBytes()" : ".length";
        bytes.append(" + (%s ? 0 : %s%s)".formatted(isNull, value, length));
      }
    }
    for (int i = 0; i < types.size(); i += COLUMNS_OF_METHOD) {
      int end = Math.min(types.size(), i + COLUMNS_OF_METHOD);
      writes.append(
          types.size() > COLUMNS_OF_METHOD
              ? method(context, types, cells, i, end, at)
              : write(types, cells, i, end, at));
    }
    return """
        %sint %s = %s.begin(%s);
        %sif (%s.end()) {
          append(%s);
        }
        """
        .formatted(computing, at, sink, bytes, writes, sink, sink);
  }

  /** Returns code that writes some of a row's cells. */
  private String write(List<DataType> types, List<ExprCode> cells, int from, int end, String at) {
    StringBuilder writes = new StringBuilder();
    for (int i = from; i < end; i++) {
      String value = cells.get(i).value().toString();
      writes.append(
          "if (%s) {\n  %s.putNull(%d);\n} else {\n  %s\n}\n"
              .formatted(
                  cells.get(i).isNull(), sink, i, write(types.get(i), sink, i, value, at)));
    }
    return writes.toString();
  }

  /** Adds a method that writes some of a row's cells, and returns code that calls it. */
  private String method(
      CodegenContext context,
      List<DataType> types,
      List<ExprCode> cells,
      int from,
      int end,
      String at) {
    List<ExprCode> taken = new ArrayList<>(cells);
    List<String> parameters = new ArrayList<>(List.of("int " + at));
    List<String> arguments = new ArrayList<>(List.of(at));
    for (int i = from; i < end; i++) {
      DataType type = types.get(i);
      taken.set(
          i,
          ExprCode.apply(
              JavaCode.isNullVariable("isNull" + i), JavaCode.variable("value" + i, type)));
      parameters.add("boolean isNull" + i);
      parameters.add(CodeGenerator.javaType(type) + " value" + i);
      arguments.add(cells.get(i).isNull().toString());
      arguments.add(cells.get(i).value().toString());
    }
    String name = context.freshName("writeCells");
    String code =
        "private void %s(%s) throws java.io.IOException {\n%s}\n"
            .formatted(name, String.join(", ", parameters), write(types, taken, from, end, at));
    String call = context.addNewFunction(name, code, false);
    return "%s(%s);\n".formatted(call, String.join(", ", arguments));
  }

  /** Returns the expression with references to the child's columns by place. */
  private Expression bound(Expression expression) {
    List<ExprId> columns =
        CollectionConverters.asJava(child.output()).stream().map(Attribute::exprId).toList();
    return expression.transform(
        PartialFunction$.MODULE$.fromFunction(
            each ->
                each instanceof Attribute column
                    ? new BoundReference(
                        columns.indexOf(column.exprId()), column.dataType(), column.nullable())
                    : each));
  }

  /** Returns the bytes of an UnsafeRow without its texts and binaries. */
  private static long fixedBytes(int columns) {
    return UnsafeRow.calculateBitSetWidthInBytes(columns) + (long) columns * Long.BYTES;
  }

  private static boolean isBytes(DataType type) {
    return type instanceof StringType || type instanceof BinaryType;
  }

  // CHANGE: edit this for a new type between Spark and Arrow
  /** Returns code that writes a value that is not null. */
  private static String write(DataType type, String sink, int column, String value, String at) {
    if (isBytes(type)) {
      return "%s.putBytes(%d, %s);".formatted(sink, column, value);
    }
    if (type instanceof BooleanType || type instanceof DayTimeIntervalType) {
      return "%s.put(%d, %s.valueOf(%s));"
          .formatted(sink, column, CodeGenerator.boxedType(type), value);
    }
    if (!CodeGenerator.isPrimitiveType(type)) {
      return "%s.put(%d, %s);".formatted(sink, column, value);
    }
    return "%s.put%s(null, %s.values(%d) + %dL * %s, %s);"
        .formatted(
            Platform.class.getName(),
            CodeGenerator.primitiveTypeName(type),
            sink,
            column,
            type.defaultSize(),
            at,
            value);
  }

  @Override
  public RDD<InternalRow> doExecute() {
    return child.execute();
  }

  @Override
  public CodegenSupport parent() {
    return parent;
  }

  @Override
  public void parent_$eq(CodegenSupport parent) {
    this.parent = parent;
  }

  @Override
  public String nodeName() {
    return "RowsToArrow";
  }

  @Override
  public Seq<Attribute> output() {
    return child.output();
  }

  @Override
  public Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child.outputOrdering();
  }

  @Override
  public Seq<SparkPlan> children() {
    return CollectionConverters.asScala(List.of(child)).toList();
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new RowsToArrowExec(children.head(), computed);
  }

  @Override
  public int productArity() {
    return 2;
  }

  @Override
  public Object productElement(int n) {
    return n == 0 ? child : computed;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof RowsToArrowExec;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof RowsToArrowExec same
        && child.equals(same.child)
        && computed.equals(same.computed);
  }

  @Override
  public int hashCode() {
    return Objects.hash(child, computed);
  }
}
