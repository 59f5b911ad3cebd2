package io.shmring.spark.request;

import java.util.ArrayDeque;
import java.util.Optional;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** UDFs over columns, which wait in the vectors that their arguments are sent from. */
final class UdfColumns extends UdfPassage {
  private final UnsafeProjection output;
  private final JoinedRow row = new JoinedRow();
  private final ArrayDeque<Batches.Vectors> waiting = new ArrayDeque<>(); // by request
  private ColumnarBatch batch; // of the oldest; null before its first row
  private int position;

  UdfColumns(UdfSignature signature) {
    super(signature.results());
    StructType joined = signature.rows();
    for (StructField result : signature.results().fields()) {
      joined = joined.add(result);
    }
    this.output = UnsafeProjection.create(joined);
  }

  @Override
  public void sent(Batches.Vectors vectors) {
    super.sent(vectors);
    waiting.add(vectors);
  }

  @Override
  UnsafeRow joined(InternalRow results) {
    if (batch == null) {
      batch = waiting.element().columns();
    }
    return output.apply(row.apply(batch.getRow(position++), results));
  }

  @Override
  public Optional<String> ended() {
    Optional<String> objection = super.ended();
    if (objection.isEmpty()) {
      waiting.remove();
      batch = null;
      position = 0;
    }
    return objection;
  }
}
