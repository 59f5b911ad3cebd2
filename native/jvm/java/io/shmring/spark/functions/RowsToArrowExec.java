package io.shmring.spark.functions;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.RowSink;
import io.shmring.spark.columns.SparkTypes;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.arrow.vector.types.Types;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet$;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.expressions.codegen.JavaCode;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.Platform;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The last node of a stage of generated code. The code writes values straight into Arrow batches,
 * without making rows first. The batches are a FunctionNode's requests, or a result that the driver
 * collects. (Spark's own aggregates take values from generated code in the same way.) If Spark
 * generates no code for the stage, this node gives the child's rows.
 */
public final class RowsToArrowExec extends ProductPlan implements CodegenSupport {
  /**
   * Name of the variable in generated code that refers to the RowSink. It cannot equal a name that
   * Spark makes, because those names end in a number.
   */
  static final String SINK = "rowSink";

  private static final String SINK_CLASS = RowSink.class.getName();
  private static final SparkTypes SPARK_TYPES = new SparkTypes("UTC", false);

  // Columns that one generated method writes, so few because the JVM does not compile a method of
  // more than 8,000 bytes.
  private static final int COLUMNS_OF_METHOD = 16;

  private final SparkPlan child;
  private final Seq<Expression> computed;
  private CodegenSupport parent;
  private transient int[] copied; // result of copied(); null before its first call
  private transient AttributeSet used; // result of usedInputs(); null before its first call

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
    String columns = context.addReferenceObj("copied", copied(), "int[]");
    // Declare the RowSink here and not in doConsume(), because Spark calls doConsume() several
    // times if the child's code gives rows at several places. The variable has a fixed name,
    // because this node has no safe place to keep a generated name until doConsume() needs it:
    // several threads may generate code for this node at the same time.
    context.addMutableState(
        SINK_CLASS,
        SINK,
        name -> "%1$s = new %2$s(%3$s); append(%1$s);".formatted(name, SINK_CLASS, columns),
        true,
        false);
    return ((CodegenSupport) child).produce(context, this);
  }

  @Override
  public Seq<RDD<InternalRow>> inputRDDs() {
    return ((CodegenSupport) child).inputRDDs();
  }

  /** Returns the columns whose values the code reads, to write them or to compute with them. */
  @Override
  public synchronized AttributeSet usedInputs() { // Spark calls this for each column
    if (used == null) {
      int[] copied = copied();
      List<Expression> read = new ArrayList<>(CollectionConverters.asJava(computed));
      List<Attribute> columns = CollectionConverters.asJava(child.output());
      for (int i = 0; i < columns.size(); i++) {
        if (copied[i] < 0) {
          read.add(columns.get(i));
        }
      }
      used =
          AttributeSet$.MODULE$.fromAttributeSets(
              CollectionConverters.asScala(read.stream().map(Expression::references).toList()));
    }
    return used;
  }

  /**
   * Returns whether the RowSink copies at least one column from the source batches, so that the
   * generated code does not write the column's values.
   */
  boolean copies() {
    return Arrays.stream(copied()).anyMatch(column -> column >= 0);
  }

  /**
   * Returns, for each column of the written batches, the number of the column in the source batches
   * from which the RowSink copies the values; -1 if the generated code writes the values.
   */
  private synchronized int[] copied() {
    if (copied == null) {
      int[] passed = ColumnsToRowsExec.passedOn(child);
      List<DataType> types = types();
      copied =
          IntStream.range(0, types.size())
              .map(i -> i < passed.length && isNumber(types.get(i)) ? passed[i] : -1)
              .toArray();
    }
    return copied;
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
    var columns = package$.MODULE$.AttributeSeq(child.output());
    context.currentVars_$eq(input);
    for (Expression each : CollectionConverters.asJava(computed)) {
      ExprCode cell = BindReferences.bindReference(each, columns, false).genCode(context);
      computing.append(cell.code()).append("\n");
      cells.add(cell);
    }
    List<DataType> types = types();
    int[] copied = copied();
    List<Integer> written =
        IntStream.range(0, types.size()).filter(i -> copied[i] < 0).boxed().toList();
    String at = context.freshName("at");
    StringBuilder bytes = new StringBuilder("%dL".formatted(fixedBytes(types.size())));
    StringBuilder writes = new StringBuilder();
    for (int i : written) {
      DataType type = types.get(i);
      String value = cells.get(i).value().toString();
      String isNull = cells.get(i).isNull().toString();
      if (isBytes(type)) {
        String length = type instanceof StringType ? ".numBytes()" : ".length";
        bytes.append(" + (%s ? 0 : %s%s)".formatted(isNull, value, length));
      }
    }
    for (int i = 0; i < written.size(); i += COLUMNS_OF_METHOD) {
      List<Integer> some =
          written.subList(i, Math.min(written.size(), i + COLUMNS_OF_METHOD));
      writes.append(
          written.size() > COLUMNS_OF_METHOD
              ? method(context, types, cells, some, at)
              : write(types, cells, some, at));
    }
    return """
        %sint %s = %s.begin(%s);
        %sif (%s.end()) {
          append(%s);
        }
        """
        .formatted(computing, at, SINK, bytes, writes, SINK, SINK);
  }

  /** Returns code that writes some of a row's cells. */
  private String write(
      List<DataType> types, List<ExprCode> cells, List<Integer> columns, String at) {
    StringBuilder writes = new StringBuilder();
    for (int i : columns) {
      String value = cells.get(i).value().toString();
      writes.append(
          "if (%s) {\n  %s.putNull(%d);\n} else {\n  %s\n}\n"
              .formatted(
                  cells.get(i).isNull(), SINK, i, write(types.get(i), i, value, at)));
    }
    return writes.toString();
  }

  /** Adds a method that writes some of a row's cells, and returns code that calls it. */
  private String method(
      CodegenContext context,
      List<DataType> types,
      List<ExprCode> cells,
      List<Integer> columns,
      String at) {
    List<ExprCode> taken = new ArrayList<>(cells);
    List<String> parameters = new ArrayList<>(List.of("int " + at));
    List<String> arguments = new ArrayList<>(List.of(at));
    for (int i : columns) {
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
            .formatted(name, String.join(", ", parameters), write(types, taken, columns, at));
    String call = context.addNewFunction(name, code, false);
    return "%s(%s);\n".formatted(call, String.join(", ", arguments));
  }

  /** Returns the size in bytes of an UnsafeRow without its texts and binaries. */
  private static long fixedBytes(int columns) {
    return UnsafeRow.calculateBitSetWidthInBytes(columns) + (long) columns * Long.BYTES;
  }

  private static boolean isBytes(DataType type) {
    return type instanceof StringType || type instanceof BinaryType;
  }

  /**
   * Returns whether a type is a number, date or timestamp whose values have the same size in
   * generated code and in an Arrow vector. Generated code stores such a value directly in the
   * vector's memory: RowSink knows the memory's address for the types that FlatColumn reads.
   */
  private static boolean isNumber(DataType type) {
    return !isBytes(type)
        && FlatColumn.isFlat(Types.getMinorTypeForArrowType(SPARK_TYPES.arrow(type)));
  }

  /** Returns code that writes a value that is not null. */
  private static String write(DataType type, int column, String value, String at) {
    if (isBytes(type)) {
      return "%s.putBytes(%d, %s);".formatted(SINK, column, value);
    }
    if (!isNumber(type)) {
      return CodeGenerator.isPrimitiveType(type)
          ? "%s.put(%d, %s.valueOf(%s));"
              .formatted(SINK, column, CodeGenerator.boxedType(type), value)
          : "%s.put(%d, %s);".formatted(SINK, column, value);
    }
    return "%s.put%s(null, %s.values(%d) + %dL * %s, %s);"
        .formatted(
            Platform.class.getName(),
            CodeGenerator.primitiveTypeName(type),
            SINK,
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
  List<Object> elements() {
    return List.of(child, computed);
  }
}
