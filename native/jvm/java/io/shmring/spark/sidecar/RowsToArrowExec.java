package io.shmring.spark.sidecar;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.RowSink;
import java.util.List;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator;
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenContext;
import org.apache.spark.sql.catalyst.expressions.codegen.ExprCode;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.execution.CodegenSupport;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.Platform;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The end of a stage whose code writes its rows straight into a sidecar's batches, as Spark's
 * aggregates take theirs: no row is made. Where the stage is not generated, it gives the child's
 * rows.
 */
public final class RowsToArrowExec extends SparkPlan implements CodegenSupport {
  private static final String SINK = RowSink.class.getName();

  private final SparkPlan child;
  private CodegenSupport parent;
  private transient String sink; // in the generated code

  public RowsToArrowExec(SparkPlan child) {
    this.child = child;
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
    sink = // one, though the child may give rows at several places
        context.addMutableState(
            SINK,
            "sink",
            name -> "%1$s = new %2$s(%3$d); append(%1$s);".formatted(name, SINK, output().size()),
            true,
            true);
    return ((CodegenSupport) child).produce(context, this);
  }

  @Override
  public Seq<RDD<InternalRow>> inputRDDs() {
    return ((CodegenSupport) child).inputRDDs();
  }

  @Override
  public AttributeSet usedInputs() {
    return child.outputSet();
  }

  @Override
  public String doConsume(CodegenContext context, Seq<ExprCode> input, ExprCode row) {
    List<ExprCode> cells = CollectionConverters.asJava(input);
    List<Attribute> columns = CollectionConverters.asJava(child.output());
    String at = context.freshName("at");
    StringBuilder bytes = new StringBuilder("%dL".formatted(fixedBytes(columns.size())));
    StringBuilder writes = new StringBuilder();
    for (int i = 0; i < columns.size(); i++) {
      DataType type = columns.get(i).dataType();
      String value = cells.get(i).value().toString();
      String isNull = cells.get(i).isNull().toString();
      if (isBytes(type)) {
        String length = type instanceof StringType ? ".numBytes()" : ".length";
        bytes.append(" + (%s ? 0 : %s%s)".formatted(isNull, value, length));
      }
      writes.append(
          "if (%s) {\n  %s.putNull(%d);\n} else {\n  %s\n}\n"
              .formatted(isNull, sink, i, write(type, sink, i, value, at)));
    }
    return """
        int %s = %s.begin(%s);
        %sif (%s.end()) {
          append(%s);
        }
        """
        .formatted(at, sink, bytes, writes, sink, sink);
  }

  /** What a row of Spark's would have without its texts and binaries. */
  private static long fixedBytes(int columns) {
    return UnsafeRow.calculateBitSetWidthInBytes(columns) + (long) columns * Long.BYTES;
  }

  private static boolean isBytes(DataType type) {
    return type instanceof StringType || type instanceof BinaryType;
  }

  // CHANGE: a new type between Spark and Arrow
  /** Writes a value that is not null. */
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
    return new RowsToArrowExec(children.head());
  }

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int n) {
    return child;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof RowsToArrowExec;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof RowsToArrowExec same && child.equals(same.child);
  }

  @Override
  public int hashCode() {
    return child.hashCode();
  }
}
