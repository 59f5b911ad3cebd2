package io.shmring.spark.request;

import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.request.Signature.OfRows;
import java.util.Optional;
import java.util.function.Function;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Handles the answers to a task's requests, in the order of the requests. */
public interface AnswerHandler {
  /** Takes notice of a request: its vectors keep their values until it is answered. */
  default void sent(Vectors vectors) {}

  /**
   * Returns why an answer with these columns cannot be taken, worded to follow "... answered";
   * empty if it can.
   */
  Optional<String> objection(Schema got);

  /**
   * Takes a piece of the oldest request's answer; returns why the piece cannot be taken, or empty.
   *
   * @param batches number of rows of each of the function's batches in the piece
   */
  Optional<String> answered(VectorSchemaRoot piece, int[] batches);

  /** Returns the piece's columns. Its schema is the one last given to {@link #objection}. */
  default ColumnarBatch columns(VectorSchemaRoot piece) {
    return FlatColumn.batch(piece);
  }

  /**
   * Lets the rows of all further requests wait in Spark's queue, because memory has no room for
   * their columns. Returns the projection to the rows that are sent; empty if no rows need to wait
   * for answers.
   */
  default Optional<OfRows> keepRows() {
    return Optional.empty();
  }

  /** Returns the types of the rows if pieces give only rows; empty if pieces give columns. */
  default Optional<StructType> onlyRows() {
    return Optional.empty();
  }

  /**
   * Returns a function that turns the piece's rows, in order, into output rows. An output row is
   * valid until the next call.
   */
  Function<InternalRow, UnsafeRow> rows(ColumnarBatch piece);

  /** Ends the oldest request's answer; returns why it cannot end here, or empty. */
  default Optional<String> ended() {
    return Optional.empty();
  }
}
