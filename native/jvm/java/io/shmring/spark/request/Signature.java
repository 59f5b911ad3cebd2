package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/**
 * Describes a node's requests (columns and types sent) and how its tasks turn answers into rows.
 *
 * @param sides the inputs: one, or two for a cogroup
 * @param rowsMayWait whether input rows may wait in Spark's queue for their answers ({@link
 *     AnswerHandler#keepRows}); the vectors then have only the columns that are sent
 * @param types the mapping from Spark types to Arrow types
 * @param answers maker of each task's answer handler
 * @param input how the children's rows become batches
 */
public record Signature(
    List<Side> sides,
    boolean rowsMayWait,
    Types types,
    Answers answers,
    Input.Maker<InternalRow> input)
    implements Serializable {
  /** Returns a signature with one side, which sends all columns of its rows. */
  public static Signature of(
      StructType rows, Types types, Answers answers, Input.Maker<InternalRow> input) {
    return of(List.of(Side.of(rows, Map.of())), types, answers, input);
  }

  public static Signature of(
      List<Side> sides, Types types, Answers answers, Input.Maker<InternalRow> input) {
    return new Signature(sides, false, types, answers, input);
  }

  /** Maps Spark types to Arrow types under one task's settings. */
  @FunctionalInterface
  public interface Types extends Serializable {
    SparkTypes in(SQLConf ofTask);

    /** Returns a mapping under the given settings, whatever settings a task has. */
    static Types of(SQLConf now) {
      SparkTypes types = SparkTypes.of(now);
      return ofTask -> types;
    }
  }

  /** Makes the handler of one task's answers. */
  @FunctionalInterface
  public interface Answers extends Serializable {
    AnswerHandler begin(TaskContext context);
  }

  /**
   * Describes one input of a call: the columns written into vectors, and which of these are sent.
   *
   * @param written the columns of the vectors
   * @param places places of the sent columns among the written ones
   * @param sent names and types of the sent columns in a request
   * @param metadata metadata of a request's schema; sidecars/wire.py says what it means
   */
  public record Side(
      StructType written, List<Integer> places, StructType sent, Map<String, String> metadata)
      implements Serializable {
    /** Returns a side that sends all columns of its rows. */
    public static Side of(StructType rows, Map<String, String> metadata) {
      List<Integer> all = IntStream.range(0, rows.size()).boxed().toList();
      return new Side(rows, all, rows, metadata);
    }
  }

  /** Projects an input row to the row that is sent. */
  @FunctionalInterface
  public interface OfRows {
    /** Returns the row to send for an input row; the result is valid until the next call. */
    UnsafeRow send(InternalRow row);

    /** Returns the bytes retained for the last projected row until its answer arrives. */
    default int kept() {
      return 0;
    }

    /** Turns rows into UnsafeRows, which most of Spark's operators give already. */
    static OfRows unsafe(StructType types) {
      UnsafeProjection projection = UnsafeProjection.create(types);
      return row -> row instanceof UnsafeRow ready ? ready : projection.apply(row);
    }
  }
}
