package io.shmring.spark.request;

import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.Optional;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Results of UDFs: as many as rows, which wait for them. */
abstract class UdfPassage implements Passage {
  private final StructType results;
  private final ArrayDeque<Integer> due = new ArrayDeque<>(); // rows, by request
  private int answered; // of the oldest request

  UdfPassage(StructType results) {
    this.results = results;
  }

  /** The oldest row with its results, which is done with then. */
  abstract UnsafeRow joined(InternalRow results);

  @Override
  public void sent(Batches.Vectors vectors) {
    due.add(vectors.rows());
  }

  @Override
  public final Optional<String> objection(Schema got) {
    return Expected.difference(got, results)
        .map(why -> "with other columns than its UDFs were declared with: " + why);
  }

  @Override
  public final Optional<String> answered(int rows) {
    answered += rows;
    return answered > due.element() ? Optional.of(miscount()) : Optional.empty();
  }

  @Override
  public final Iterator<UnsafeRow> receive(ColumnarBatch piece) {
    Iterator<InternalRow> rows = piece.rowIterator();
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return rows.hasNext();
      }

      @Override
      public UnsafeRow next() {
        return joined(rows.next());
      }
    };
  }

  @Override
  public Optional<String> ended() {
    if (answered != due.element()) {
      return Optional.of(miscount());
    }
    due.remove();
    answered = 0;
    return Optional.empty();
  }

  private String miscount() {
    return String.format(
        "with another number of rows than a UDF must: expected %d, got %d",
        due.element(), answered);
  }
}
