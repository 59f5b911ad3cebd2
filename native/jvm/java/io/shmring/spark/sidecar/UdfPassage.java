package io.shmring.spark.sidecar;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Results of UDFs: as many as rows, which wait for them. The last UDF's come beside those. */
abstract class UdfPassage implements Passage {
  private final StructType type;
  private final UnsafeProjection result;
  private final List<KeptRows> results = new ArrayList<>(); // of all UDFs but the last
  private final ArrayDeque<Integer> due = new ArrayDeque<>(); // rows, by request
  private int answered; // of the oldest request
  private int turn; // the UDF whose request that is

  /**
   * @param type of one column
   */
  UdfPassage(int udfs, StructType type) {
    this.type = type;
    this.result = UnsafeProjection.create(type);
    for (int i = 1; i < udfs; i++) {
      results.add(new KeptRows(1));
    }
  }

  /**
   * The oldest row with its results, which is done with then.
   *
   * @param earlier those of all UDFs but the last; each gives one
   */
  abstract UnsafeRow joined(List<KeptRows> earlier, InternalRow last);

  /** All requests of a batch were answered. */
  abstract void batchEnded();

  @Override
  public void sent(Batches.Vectors vectors) {
    due.add(vectors.rows());
  }

  @Override
  public final Optional<String> objection(Schema got) {
    if (got.getFields().isEmpty()) {
      return Optional.of("without a column: expected one with the result for each row");
    }
    Schema first = new Schema(List.of(got.getFields().get(0)));
    return Expected.difference(first, type)
        .map(why -> "with a column of another type than the UDF was declared with: " + why);
  }

  @Override
  public final Optional<String> answered(int rows) {
    answered += rows;
    return answered > due.element() ? Optional.of(miscount()) : Optional.empty();
  }

  @Override
  public final Iterator<UnsafeRow> receive(ColumnarBatch piece) {
    if (turn == results.size()) {
      return Iterators.map(piece.rowIterator(), row -> joined(results, row));
    }
    piece.rowIterator().forEachRemaining(row -> results.get(turn).add(result.apply(row)));
    return Collections.emptyIterator();
  }

  @Override
  public final Optional<String> ended() {
    if (answered != due.element()) {
      return Optional.of(miscount());
    }
    due.remove();
    answered = 0;
    if (turn == results.size()) {
      turn = 0;
      batchEnded();
    } else {
      turn++;
    }
    return Optional.empty();
  }

  private String miscount() {
    return String.format(
        "with another number of rows than a UDF must: expected %d, got %d",
        due.element(), answered);
  }
}
