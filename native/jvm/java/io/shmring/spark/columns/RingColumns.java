package io.shmring.spark.columns;

import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.RingSchema;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes columns of messages. */
public interface RingColumns {
  /** The number of messages in one batch of columns. */
  int messagesPerBatch();

  /** Copies the messages out. */
  ColumnarBatch copy(List<Message> messages);

  /**
   * Reads the messages in place, if that is possible.
   *
   * @param whenUnused runs when no column uses them any more
   */
  ColumnarBatch map(List<Message> messages, Runnable whenUnused);

  /**
   * @param schema that the read was planned with; the ring may have been replaced since
   */
  static RingColumns of(Ring ring, StructType schema, int[] columns) {
    StructType found = RingTypes.of(ring);
    if (!DataType.equalsIgnoreNullability(found, schema)) {
      throw new RingException(
          Status.DAMAGED,
          String.format(
              "ring \"%s\" was replaced by one with another schema:%n%sinstead of%n%s",
              ring.name(), found.treeString(), schema.treeString()));
    }
    Optional<RingSchema> stored = RingSchema.of(ring);
    return stored.isPresent()
        ? new ArrowColumns(String.format("ring \"%s\"", ring.name()), stored.get(), columns)
        : new QueueTableColumns(ring, columns);
  }
}
