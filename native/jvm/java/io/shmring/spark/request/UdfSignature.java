package io.shmring.spark.request;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Signature.AnswerHandler;
import java.io.Serializable;
import java.util.ArrayDeque;
import java.util.Base64;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.execution.python.HybridRowQueue;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * UDFs beside each other: their arguments go, each of them once, and the results come beside the row,
 * which waits here.
 *
 * @param uses the UDFs; none where Spark's own workers run them
 * @param arguments that are computed from the input's attributes
 * @param places of the arguments in the input, all of which is written; none if rows are
 * @param input the child's output; rows are its types
 * @param results a column for each of the UDFs
 * @param lags whether results come in the order of the rows, but perhaps after all requests; not of
 *     columns
 */
public record UdfSignature(
    List<Use> uses,
    Seq<Expression> arguments,
    List<Integer> places,
    Seq<Attribute> input,
    StructType rows,
    StructType results,
    SparkTypes types,
    boolean lags)
    implements Signature {
  /** Of the schema: sidecars/wire.py says what both mean. */
  private static final String CALLS = "shmring.calls";

  /** The sidecar casts its results to this, as Spark's workers do. */
  private static final String ANSWER = "shmring.answer";

  @Override
  public Signature in(SQLConf ofTask) {
    return new UdfSignature(
        uses, arguments, places, input, rows, results, SparkTypes.of(ofTask), lags);
  }

  @Override
  public Schema columns() {
    return schema(isOfColumns() ? input : arguments);
  }

  @Override
  public Sent sent() {
    SparkTypes cast = new SparkTypes("UTC", types.large()); // theirs is of this zone
    byte[] answer = EncodedBatch.schemaBytes(cast.schema(results));
    Map<String, String> metadata = // in order: requests of one schema may be joined
        new TreeMap<>(
            Map.of(CALLS, calls(), ANSWER, Base64.getEncoder().encodeToString(answer)));
    return new Sent(
        isOfColumns() ? places : IntStream.range(0, arguments.size()).boxed().toList(),
        new Schema(schema(arguments).getFields(), metadata));
  }

  private boolean isOfColumns() {
    return !places.isEmpty();
  }

  /** Of columns, by their places: two may have one name. */
  public static StructType types(Seq<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : CollectionConverters.asJava(columns)) {
      types = types.add("_" + types.size(), column.dataType());
    }
    return types;
  }

  private Schema schema(Seq<? extends Expression> written) {
    return types.schema(types(written));
  }

  private String calls() {
    ArrayNode calls = JsonNodeFactory.instance.arrayNode();
    for (Use use : uses) {
      ArrayNode call = calls.addArray();
      for (int i = 0; i < use.arguments().size(); i++) {
        call.addArray().add(use.names().get(i)).add(use.arguments().get(i));
      }
    }
    return calls.toString();
  }

  @Override
  public AnswerHandler begin(int partition) {
    return isOfColumns() ? new Columns(this) : new Rows(this, partition);
  }

  /**
   * One UDF of several that share their arguments.
   *
   * @param arguments which of these it takes, in order
   * @param names what the sidecar's function sees them as
   */
  public record Use(List<Integer> arguments, List<String> names) implements Serializable {}

  /** Results of UDFs: as many as rows, which wait for them. */
  private abstract static class Answers implements AnswerHandler {
    private final StructType results;
    private final boolean lags; // then the worker itself looks how many there are
    private final boolean isOfSidecar; // else Spark finds nulls that may not be
    private final ArrayDeque<Batches.Vectors> due = new ArrayDeque<>(); // by request
    private int answered; // of the oldest request

    Answers(UdfSignature signature) {
      this.results = signature.results;
      this.lags = signature.lags;
      this.isOfSidecar = !signature.uses.isEmpty();
    }

    /** The rows that the last piece answers, until the next one comes. */
    final VectorSchemaRoot sentOf(int count) {
      return due.element().part(answered - count, count);
    }

    @Override
    public final void sent(Batches.Vectors vectors) {
      if (!lags) {
        due.add(vectors);
      }
    }

    @Override
    public final Optional<String> objection(Schema got) {
      return ResultSchema.difference(got, results)
          .map(why -> "with other columns than its UDFs were declared with: " + why);
    }

    @Override
    public final Optional<String> answered(VectorSchemaRoot piece) {
      if (lags) {
        return Optional.empty();
      }
      answered += piece.getRowCount();
      if (answered > due.element().rows()) {
        return Optional.of(miscount());
      }
      return isOfSidecar
          ? ResultSchema.NullCheck.objection(piece.getFieldVectors(), results.fields())
          : Optional.empty();
    }

    @Override
    public final Optional<String> ended() {
      if (lags) {
        return Optional.empty();
      }
      if (answered != due.element().rows()) {
        return Optional.of(miscount());
      }
      due.remove();
      answered = 0;
      return Optional.empty();
    }

    private String miscount() {
      return String.format(
          "with another number of rows than a UDF must: expected %d, got %d",
          due.element().rows(), answered);
    }
  }

  /** UDFs over columns, which wait in the vectors that their arguments are sent from. */
  private static final class Columns extends Answers {
    private final ColumnRows rows;

    Columns(UdfSignature signature) {
      super(signature);
      StructType joined = signature.rows();
      for (StructField result : signature.results().fields()) {
        joined = joined.add(result);
      }
      this.rows = new ColumnRows(joined);
    }

    @Override
    public ColumnarBatch columns(VectorSchemaRoot results) {
      return FlatColumn.batch(sentOf(results.getRowCount()), results);
    }

    @Override
    public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      return rows.of(piece);
    }
  }

  /** UDFs over rows: the arguments are computed from these. */
  private static final class Rows extends Answers implements AnswerHandler.OfRows {
    private final AnswerHandler.OfRows unsafe;
    private final UnsafeProjection arguments;
    private final JoinedRows joined;
    private int kept;

    Rows(UdfSignature signature, int partition) {
      super(signature);
      this.unsafe = AnswerHandler.OfRows.unsafe(signature.rows());
      this.arguments = UnsafeProjection.create(signature.arguments(), signature.input());
      this.joined = new JoinedRows(signature.rows(), signature.results());
      arguments.initialize(partition);
    }

    @Override
    public UnsafeRow send(InternalRow row) {
      UnsafeRow ready = unsafe.send(row);
      joined.add(ready);
      kept = ready.getSizeInBytes();
      return arguments.apply(ready);
    }

    @Override
    public int kept() {
      return kept;
    }

    @Override
    public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      return joined.of(piece);
    }
  }

  /** Rows that wait, each with a row of results behind its columns. */
  static final class JoinedRows {
    private final UnsafeProjection results;
    private final HybridRowQueue waiting;
    private final UnsafeRowJoiner joiner;

    JoinedRows(StructType rows, StructType results) {
      this.results = UnsafeProjection.create(results);
      this.waiting = waiting(rows.size());
      this.joiner = GenerateUnsafeRowJoiner.create(rows, results);
    }

    void add(UnsafeRow row) {
      waiting.add(row);
    }

    /** The oldest rows, as many as there are results; each is good until the next one. */
    Iterator<UnsafeRow> of(ColumnarBatch piece) {
      Iterator<InternalRow> rows = piece.rowIterator();
      return new Iterator<>() {
        @Override
        public boolean hasNext() {
          return rows.hasNext();
        }

        @Override
        public UnsafeRow next() {
          return joiner.join(waiting.remove(), results.apply(rows.next()));
        }
      };
    }
  }

  /** Rows that wait for their answers, first in, first out; in a file where memory is short. */
  static HybridRowQueue waiting(int columns) {
    TaskContext context = TaskContext.get();
    HybridRowQueue rows = HybridRowQueue.apply(context.taskMemoryManager(), columns);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> rows.close());
    return rows;
  }

  /**
   * Arguments of aggregates go, group by group, and rows of results come: each stands beside one that
   * waits for it, which is the group's key, or one of its rows.
   *
   * @param types unless it is of windows: they are as each task's settings want them
   */
  public record AggregateSignature(
      StructType arguments,
      StructType rows,
      StructType results,
      SparkTypes types,
      boolean isOfWindows)
      implements Signature {
    @Override
    public Signature in(SQLConf ofTask) {
      return isOfWindows
          ? new AggregateSignature(arguments, rows, results, SparkTypes.of(ofTask), true)
          : this;
    }

    @Override
    public Schema columns() {
      return types.schema(arguments);
    }

    @Override
    public Signature.AnswerHandler begin(int partition) {
      return new Answers(this);
    }

    /** Of one task. */
    public static final class Answers implements Signature.AnswerHandler {
      private final StructType results;
      private final JoinedRows joined;

      Answers(AggregateSignature signature) {
        this.results = signature.results;
        this.joined = new JoinedRows(signature.rows, signature.results);
      }

      /** A group follows, or a row of one. */
      public InternalRow begun(InternalRow row) {
        joined.add((UnsafeRow) row);
        return row;
      }

      @Override
      public Optional<String> objection(Schema got) {
        return ResultSchema.difference(got, results);
      }

      @Override
      public java.util.Iterator<UnsafeRow> receive(ColumnarBatch piece) {
        return joined.of(piece);
      }
    }
  }
}
