package io.shmring.spark.request;

import io.shmring.spark.columns.FlatColumn;
import java.io.Serializable;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
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
/** What one kind of Spark's functions sends to a sidecar, and what it makes of the answers. */
public interface Signature extends Serializable {
  /**
   * What goes of a batch.
   *
   * @param columns which of its columns
   * @param schema of the request
   */
  record Sent(List<Integer> columns, Schema schema) {}

  /** Of the rows of a batch. */
  Schema columns();

  /** All of them, unless a signature says otherwise. */
  default Sent sent() {
    Schema schema = columns();
    return new Sent(IntStream.range(0, schema.getFields().size()).boxed().toList(), schema);
  }

  /** Of the sides of a cogroup. */
  default List<Signature> sides() {
    return List.of(this);
  }

  /** The same in a task with these settings. */
  default Signature in(SQLConf ofTask) {
    return this;
  }

  /** For one task. */
  AnswerHandler begin(int partition);

  /** What comes of a task's requests, in order. */
  public interface AnswerHandler {
    /** What is sent of rows. */
    @FunctionalInterface
    interface OfRows {
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

    /** What comes of that piece; each row is good until the next one. */
    Iterator<UnsafeRow> receive(ColumnarBatch piece);

    /** The oldest request's answer has no more pieces; why that cannot be. */
    default Optional<String> ended() {
      return Optional.empty();
    }
  }
}
