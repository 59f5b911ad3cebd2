package io.shmring.spark.request;

import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.SparkTypes;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

// CHANGE: a new kind of Python function
/**
 * What a node's tasks send, and what they make of the answers.
 *
 * @param sides of a cogroup; one of what is none
 * @param ofRows instead of the only side once {@link AnswerHandler#keepRows} was called; else none
 * @param types of what goes
 * @param answers for each task
 * @param input how the children's rows become batches
 */
public record Signature(
    List<Side> sides,
    List<Side> ofRows,
    Types types,
    Answers answers,
    Batches.Input.Kind<InternalRow> input)
    implements Serializable {
  /** All columns of such rows go. */
  public static Signature of(
      StructType rows, Types types, Answers answers, Batches.Input.Kind<InternalRow> input) {
    return of(List.of(Side.of(rows, Map.of())), types, answers, input);
  }

  public static Signature of(
      List<Side> sides, Types types, Answers answers, Batches.Input.Kind<InternalRow> input) {
    return new Signature(sides, List.of(), types, answers, input);
  }

  /** Types of what goes in a task with these settings. */
  @FunctionalInterface
  public interface Types extends Serializable {
    SparkTypes in(SQLConf ofTask);

    /** Those of these settings, whatever a task's are. */
    static Types of(SQLConf now) {
      SparkTypes types = SparkTypes.of(now);
      return ofTask -> types;
    }
  }

  /** What becomes of a task's answers. */
  @FunctionalInterface
  public interface Answers extends Serializable {
    AnswerHandler begin(int partition);
  }

  /**
   * What goes of a side's batches.
   *
   * @param written their columns
   * @param places of those that go
   * @param sent what these are in a request
   * @param metadata of a request's schema: sidecars/wire.py says what it means
   */
  public record Side(
      StructType written, List<Integer> places, StructType sent, Map<String, String> metadata)
      implements Serializable {
    /** All columns of such rows. */
    public static Side of(StructType rows, Map<String, String> metadata) {
      List<Integer> all = IntStream.range(0, rows.size()).boxed().toList();
      return new Side(rows, all, rows, metadata);
    }
  }

  /** What is sent of rows. */
  @FunctionalInterface
  public interface OfRows {
    /** What is sent of a row; it is good until the next call. */
    UnsafeRow send(InternalRow row);

    /** Bytes of the last of these rows that stay here until its answer comes. */
    default int kept() {
      return 0;
    }

    /** Makes rows of these types what most of Spark's operators give already. */
    static OfRows unsafe(StructType types) {
      UnsafeProjection projection = UnsafeProjection.create(types);
      return row -> row instanceof UnsafeRow ready ? ready : projection.apply(row);
    }
  }

  /** What comes of a task's requests, in order. */
  public interface AnswerHandler {
    /** This became a request, and keeps its values until that is answered. */
    default void sent(Batches.Vectors vectors) {}

    /** Why an answer with such columns cannot be taken, as in "... answered [with a red one]". */
    Optional<String> objection(Schema got);

    /** What comes now is so many batches of the function's, of so many rows. */
    default void begun(int[] batches) {}

    /** A piece of the oldest request's answer has come; why it cannot be taken. */
    default Optional<String> answered(VectorSchemaRoot piece) {
      return Optional.empty();
    }

    /** That piece, with such columns as {@link #objection} was asked about last. */
    default ColumnarBatch columns(VectorSchemaRoot piece) {
      return FlatColumn.batch(piece);
    }

    /**
     * Lets the rows of all further requests wait in Spark's queue, as their columns have no room in
     * memory, and returns what is sent of them; empty: no rows need to wait.
     */
    default Optional<OfRows> keepRows() {
      return Optional.empty();
    }

    /** Types of that piece's rows if it gives no columns; empty: it gives some. */
    default Optional<StructType> onlyRows() {
      return Optional.empty();
    }

    /** What makes Spark's rows of that piece's, in order; each is good until the next one. */
    Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece);

    /** The oldest request's answer has no more pieces; why that cannot be. */
    default Optional<String> ended() {
      return Optional.empty();
    }
  }
}
