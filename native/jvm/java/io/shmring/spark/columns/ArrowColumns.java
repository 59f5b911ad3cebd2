package io.shmring.spark.columns;

import io.shmring.Message;
import io.shmring.arrow.BatchDecoder;
import io.shmring.arrow.RingSchema;
import java.util.List;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The columns of a ring of Arrow batches: one message, one batch. */
final class ArrowColumns implements RingColumns {
  private final BatchDecoder decoder;

  ArrowColumns(RingSchema schema, int[] columns) {
    this.decoder = new BatchDecoder(schema, columns, ArrowUtils.rootAllocator());
  }

  @Override
  public int messagesPerBatch() {
    return 1;
  }

  @Override
  public ColumnarBatch copy(List<Message> messages) {
    return columnar(decoder.copy(messages.get(0)));
  }

  @Override
  public ColumnarBatch map(List<Message> messages, Runnable whenUnused) {
    return columnar(decoder.map(messages.get(0), whenUnused));
  }

  private static ColumnarBatch columnar(VectorSchemaRoot root) {
    ColumnVector[] vectors =
        root.getFieldVectors().stream().map(FlatColumn::of).toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, root.getRowCount());
  }
}
