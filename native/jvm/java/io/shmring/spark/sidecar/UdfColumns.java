package io.shmring.spark.sidecar;

import java.util.ArrayDeque;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** UDFs over columns, which wait in the vectors that their arguments are sent from. */
final class UdfColumns extends UdfPassage {
  private final int requests; // of a batch
  private final UnsafeProjection output;
  private final ArrayDeque<Batches.Vectors> waiting = new ArrayDeque<>(); // by request
  private ColumnarBatch batch; // of the oldest; null before its first row
  private int position;

  UdfColumns(UdfSignature signature) {
    super(signature.uses().size(), signature.result());
    this.requests = signature.uses().size();
    StructType joined = signature.rows();
    for (int i = 0; i < requests; i++) {
      joined = joined.add(signature.result().apply(0));
    }
    this.output = UnsafeProjection.create(joined);
  }

  @Override
  public void sent(Batches.Vectors vectors) {
    super.sent(vectors);
    waiting.add(vectors);
  }

  @Override
  UnsafeRow joined(List<KeptRows> earlier, InternalRow last) {
    if (batch == null) {
      batch = waiting.element().columns();
    }
    InternalRow row = new JoinedRow(batch.getRow(position++), results(earlier, last));
    return output.apply(row);
  }

  private static InternalRow results(List<KeptRows> earlier, InternalRow last) {
    InternalRow results = last;
    for (int i = earlier.size() - 1; i >= 0; i--) {
      results = new JoinedRow(earlier.get(i).remove(), results);
    }
    return results;
  }

  @Override
  void batchEnded() {
    for (int i = 0; i < requests; i++) {
      waiting.remove();
    }
    batch = null;
    position = 0;
  }
}
