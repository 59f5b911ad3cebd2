package io.shmring.spark.columns;

import io.shmring.Internals;
import io.shmring.Message;
import io.shmring.Ring;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The columns of a ring of bytes: slot, message_id, time, message, reference_count. */
final class QueueTableColumns implements RingColumns {
  private static final int ROWS = 4096;

  private final Ring ring;
  private final StructField[] fields;

  QueueTableColumns(Ring ring, int[] columns) {
    this.ring = ring;
    StructField[] all = RingTypes.QUEUE_TABLE.fields();
    this.fields = new StructField[columns.length];
    Arrays.setAll(fields, i -> all[columns[i]]);
  }

  @Override
  public int messagesPerBatch() {
    return ROWS;
  }

  @Override
  public ColumnarBatch copy(List<Message> messages) {
    ColumnVector[] vectors = new ColumnVector[fields.length];
    for (int i = 0; i < fields.length; i++) {
      OnHeapColumnVector vector = new OnHeapColumnVector(messages.size(), fields[i].dataType());
      fill(vector, fields[i].name(), messages);
      vectors[i] = vector;
    }
    return new ColumnarBatch(vectors, messages.size());
  }

  /** Copies messages in any case: Spark's columns have another layout. */
  @Override
  public ColumnarBatch map(List<Message> messages, Runnable whenUnused) {
    ColumnarBatch batch = copy(messages);
    whenUnused.run();
    return batch;
  }

  private void fill(OnHeapColumnVector vector, String column, List<Message> messages) {
    for (int row = 0; row < messages.size(); row++) {
      Message message = messages.get(row);
      switch (column) {
        case RingTypes.SLOT -> vector.putLong(row, Internals.slotAndReferences(ring, message.id())[0]);
        case RingTypes.MESSAGE_ID -> vector.putLong(row, message.id());
        case RingTypes.TIME -> putTime(vector, row, message.time());
        case RingTypes.MESSAGE -> vector.putByteArray(row, message.bytes());
        case RingTypes.REFERENCE_COUNT ->
            vector.putInt(row, (int) Internals.slotAndReferences(ring, message.id())[1]);
        default -> throw new IllegalStateException(column);
      }
    }
  }

  private static void putTime(OnHeapColumnVector vector, int row, long nanos) {
    if (nanos == 0) {
      vector.putNull(row);
    } else {
      vector.putLong(row, nanos / 1000);
    }
  }
}
