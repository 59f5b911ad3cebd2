package io.shmring.spark.columns;

import io.shmring.Message;
import io.shmring.arrow.BatchDecoder;
import io.shmring.arrow.RingSchema;
import java.util.List;
import org.apache.spark.sql.util.ArrowUtils;
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
    return RootColumns.of(decoder.copy(messages.get(0)));
  }

  @Override
  public ColumnarBatch map(List<Message> messages, Runnable whenUnused) {
    return RootColumns.of(decoder.map(messages.get(0), whenUnused));
  }
}
