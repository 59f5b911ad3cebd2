package io.shmring.spark.columns;

import io.shmring.Message;
import io.shmring.arrow.BatchDecoder;
import io.shmring.arrow.Conversion;
import io.shmring.arrow.RingSchema;
import java.util.Arrays;
import java.util.List;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The columns of a ring of Arrow batches: one message, one batch. */
final class ArrowColumns implements RingColumns {
  private final BatchDecoder decoder;
  private final Conversion conversion;

  /**
   * @param label names the ring in errors
   */
  ArrowColumns(String label, RingSchema schema, int[] columns) {
    List<Field> fields = schema.plain().getFields();
    this.decoder = new BatchDecoder(schema, columns, ArrowUtils.rootAllocator());
    this.conversion =
        new Conversion(
            label,
            Arrays.stream(columns).mapToObj(fields::get).toList(),
            ArrowUtils.rootAllocator());
  }

  @Override
  public int messagesPerBatch() {
    return 1;
  }

  @Override
  public ColumnarBatch copy(List<Message> messages) {
    return RootColumns.of(conversion.apply(decoder.copy(messages.get(0))));
  }

  @Override
  public ColumnarBatch map(List<Message> messages, Runnable whenUnused) {
    return RootColumns.of(conversion.apply(decoder.map(messages.get(0), whenUnused)));
  }
}
