package io.shmring.spark.columns;

import io.shmring.Internals;
import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.BatchDecoder;
import io.shmring.arrow.Conversion;
import io.shmring.arrow.RingSchema;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Turns a ring's messages into columnar batches. */
public interface RingColumns {
  int messagesPerBatch();

  ColumnarBatch copy(List<Message> messages);

  /**
   * Returns columns that read the messages in place if possible, else copies.
   *
   * @param whenUnused an action that runs when no column uses the messages any more
   */
  ColumnarBatch map(List<Message> messages, Runnable whenUnused);

  /**
   * @param schema the schema that the read was planned with; the ring may have been replaced since
   */
  static RingColumns of(Ring ring, StructType schema, int[] columns) {
    StructType found = RingTypes.of(ring);
    if (!DataType.equalsIgnoreNullability(found, schema)) {
      throw new RingException(
          Status.DAMAGED, "ring \"%s\" was replaced by one with another schema:%n%sinstead of%n%s",
          ring.name(), found.treeString(), schema.treeString());
    }
    Optional<RingSchema> stored = RingSchema.of(ring);
    return stored.isPresent()
        ? new ArrowColumns(String.format("ring \"%s\"", ring.name()), stored.get(), columns)
        : new QueueTableColumns(ring, columns);
  }

  /** The columns of a ring of Arrow batches: one message, one batch. */
  static final class ArrowColumns implements RingColumns {
    private final BatchDecoder decoder;
    private final Conversion conversion;

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
      return FlatColumn.batch(conversion.apply(decoder.copy(messages.get(0))));
    }

    @Override
    public ColumnarBatch map(List<Message> messages, Runnable whenUnused) {
      return FlatColumn.batch(conversion.apply(decoder.map(messages.get(0), whenUnused)));
    }
  }

  /** The columns of a ring of bytes: slot, message_id, time, message, reference_count. */
  static final class QueueTableColumns implements RingColumns {
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
      OnHeapColumnVector[] vectors = OnHeapColumnVector.allocateColumns(messages.size(), fields);
      for (int i = 0; i < fields.length; i++) {
        fill(vectors[i], fields[i].name(), messages);
      }
      return new ColumnarBatch(vectors, messages.size());
    }

    /** Returns copies, because Spark's columns have another layout than messages. */
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
          case RingTypes.SLOT ->
              vector.putLong(row, Internals.slotAndReferences(ring, message.id())[0]);
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
}
