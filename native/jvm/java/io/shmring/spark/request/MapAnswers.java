package io.shmring.spark.request;

import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature.OfRows;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.python.HybridRowQueue;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Handles answers of a sidecar's function. Their columns replace the columns that were sent. */
public class MapAnswers implements AnswerHandler, OfRows {
  private final String method;
  private final ColumnMapping mapping;
  final StructType output;
  private final List<String> names;
  private final ColumnRows rows;
  private final OfRows send;
  final Function<List<FieldVector>, Optional<String>> nulls;
  private int[] places = {}; // places of the output's columns in the current answers

  /**
   * @param method name of the method that the user called, for the text of an error
   * @param mapping how the columns of answers become the columns of the output
   * @param input types of the rows that are sent, if rows are sent and not columns
   */
  public MapAnswers(String method, ColumnMapping mapping, StructType output, StructType input) {
    this(method, mapping, output, OfRows.unsafe(input));
  }

  private MapAnswers(String method, ColumnMapping mapping, StructType output, OfRows send) {
    this.method = method;
    this.mapping = mapping;
    this.names = List.of(output.fieldNames());
    this.output = output;
    this.rows = new ColumnRows(output);
    this.send = send;
    this.nulls = ResultSchema.nullCheck(output);
  }

  @Override
  public UnsafeRow send(InternalRow row) {
    return send.send(row);
  }

  @Override
  public Optional<String> objection(Schema got) {
    return difference(got.getFields())
        .map(
            why ->
                String.format(
                    "with other columns than %s was declared with: %s (expected %s; got %s)",
                    method, why, ResultSchema.inWords(output), ResultSchema.inWords(got)));
  }

  private Optional<String> difference(List<Field> got) {
    List<String> gotNames = ResultSchema.names(got);
    if (got.isEmpty() && !method.equals("mapInArrow")) { // an answer without rows needs no columns
      places = new int[] {};
      return Optional.empty();
    }
    if (!mapping.takes(gotNames, names)) {
      return Optional.of("other names, or another number");
    }
    places = mapping.places(gotNames, names);
    List<Field> chosen = Arrays.stream(places).mapToObj(got::get).toList();
    return ResultSchema.difference(chosen, output.fields(), mapping);
  }

  @Override
  public ColumnarBatch columns(VectorSchemaRoot batch) {
    return FlatColumn.batch(batch, places);
  }

  @Override
  public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
    if (piece.getRowCount() == 0) {
      return Optional.empty();
    }
    if (places.length < names.size()) {
      return Optional.of(
          String.format(
              "with rows without columns, where %s was declared with %s",
              method, ResultSchema.inWords(output)));
    }
    List<FieldVector> chosen = Arrays.stream(places).mapToObj(piece::getVector).toList();
    return nulls.apply(chosen);
  }

  @Override
  public Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
    return rows.of(piece);
  }

  public record Declared(int evalType, DataType type) {}

  /**
   * Handles answers of Spark's own Python functions. As in Spark, answers of other types than the
   * declared ones are refused only if the session asks for it (validateSchema). Otherwise, an Arrow
   * type that Spark cannot read raises an error at once. Any other wrong type raises an error when
   * Spark reads a value, or never.
   */
  public static class OfPython extends MapAnswers {
    private final Optional<Declared> declared;
    private boolean isTyped; // whether the current answers have the declared types
    // Whether the piece has the declared types, and nulls only in nullable columns.
    private boolean isDeclared;

    /**
     * @param declared the function's declaration. The answers are compared with it only if the
     *     session has validateSchema switched on
     */
    public OfPython(StructType output, StructType input, Optional<Declared> declared) {
      this(
          output,
          OfRows.unsafe(input),
          declared.filter(each -> SQLConf.get().pysparkArrowValidateSchema()));
    }

    private OfPython(StructType output, OfRows send, Optional<Declared> declared) {
      super("mapInArrow", ColumnMapping.BY_PLACE, output, send);
      this.declared = declared;
    }

    /** Raises Spark's error if the answers are not of the function's type. */
    @SuppressWarnings("unchecked") // the generic type lets a checked exception go undeclared
    private <E extends Throwable> void validate(Declared as, Schema got) throws E {
      DataType type = ArrowUtils.fromArrowSchema(got);
      if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(type, as.type())) {
        throw (E)
            QueryExecutionErrors.arrowDataTypeMismatchError(
                PythonEvalType.toString(as.evalType()),
                CollectionConverters.asScala(List.of(as.type())).toList(),
                CollectionConverters.asScala(List.of(type)).toList());
      }
    }

    @Override
    public Optional<String> objection(Schema got) {
      List<Field> fields = got.getFields();
      isTyped =
          fields.size() >= output.size()
              && ResultSchema.difference(fields, output.fields(), ColumnMapping.BY_PLACE).isEmpty();
      declared.ifPresent(as -> this.<RuntimeException>validate(as, got));
      if (!isTyped) {
        ResultSchema.requireReadable(got);
      }
      return Optional.empty();
    }

    @Override
    public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
      isDeclared = isTyped && nulls.apply(piece.getFieldVectors()).isEmpty();
      return Optional.empty();
    }

    /**
     * Returns the output's types if the piece has other types than declared, or forbidden nulls: the
     * task then makes rows of the piece. Spark makes rows of every piece, and so raises at a value
     * that it cannot read, even if no operator above needs the value.
     */
    @Override
    public Optional<StructType> onlyRows() {
      return isDeclared ? Optional.empty() : Optional.of(output);
    }

    /**
     * Returns the piece's columns. If the piece has other types than declared, or forbidden nulls,
     * its columns are read by Spark's classes, with Spark's errors.
     */
    @Override
    public ColumnarBatch columns(VectorSchemaRoot piece) {
      if (isDeclared) {
        return FlatColumn.batch(piece, IntStream.range(0, output.size()).toArray());
      }
      ColumnVector[] all =
          piece.getFieldVectors().stream()
              .map(ArrowColumnVector::new)
              .toArray(ColumnVector[]::new);
      ColumnVector[] taken = new ColumnVector[output.size()];
      Arrays.setAll(taken, i -> all[i]); // if a column is missing, the index error names it
      return new ColumnarBatch(taken, piece.getRowCount());
    }
  }

  /**
   * Handles answers of a UDTF. The task sends the values of the UDTF's arguments, and keeps the
   * input rows in a queue. As in Spark's own node, each batch that the UDTF returns takes the next
   * input row from the queue, or the last input row again if the queue is empty. All rows of the
   * batch are joined with that input row.
   */
  public static final class OfUdtf extends OfPython {
    private final UnsafeProjection kept;
    private final UnsafeProjection output;
    private final HybridRowQueue rows;
    private final JoinedRow joined = new JoinedRow();
    private long waiting; // number of input rows that wait in the queue
    private int[] batches; // number of result rows of each batch in the current piece
    private InternalRow[] left; // for each batch, the input row joined with its results
    private InternalRow last; // the input row taken from the queue last
    private int batch; // index of the batch whose result row was given last
    private int rest; // result rows of the current batch not given yet

    /**
     * @param arguments the UDTF's arguments, computed from the input's attributes
     * @param input the child's output
     * @param kept the input's columns that stand beside the results
     */
    public OfUdtf(
        Seq<Expression> arguments,
        Seq<Attribute> input,
        Seq<Attribute> kept,
        Seq<Attribute> results,
        TaskContext context) {
      super(
          GroupedSide.types(CollectionConverters.asJava(results)),
          UdfAnswers.projection(arguments, input, context)::apply,
          Optional.empty());
      List<Attribute> output = new ArrayList<>(CollectionConverters.asJava(kept));
      this.kept = projection(output, input);
      this.rows = WaitingRows.queue(context, output.size());
      output.addAll(CollectionConverters.asJava(results));
      this.output = projection(output, CollectionConverters.asScala(output).toList());
    }

    private static UnsafeProjection projection(List<Attribute> columns, Seq<Attribute> input) {
      return UnsafeProjection.create(GroupedSide.expressions(columns), input);
    }

    @Override
    public UnsafeRow send(InternalRow row) {
      rows.add(kept.apply(row));
      waiting++;
      return super.send(row);
    }

    @Override
    public Optional<String> answered(VectorSchemaRoot piece, int[] batches) {
      this.batches = batches;
      left = new InternalRow[batches.length];
      for (int i = 0; i < batches.length; i++) {
        if (waiting > 0) {
          waiting--;
          last = rows.remove().copy();
        }
        left[i] = last;
      }
      return super.answered(piece, batches);
    }

    /**
     * Returns a function that joins results with input rows. It fails, as Spark does, if there are
     * results but the partition had no input rows.
     */
    @Override
    public Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece) {
      batch = -1;
      rest = 0;
      return this::joined;
    }

    private UnsafeRow joined(InternalRow result) {
      while (rest == 0) {
        batch++;
        rest = batches[batch];
        joined.withLeft(left[batch]);
      }
      rest--;
      return output.apply(joined.withRight(result));
    }
  }
}
