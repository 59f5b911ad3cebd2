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
  /** How many messages make one batch of columns. */
  int messagesPerBatch();

  /** Copies the messages out. */
  ColumnarBatch copy(List<Message> messages);

  /**
   * Leaves the messages where they are, where that can be.
   *
   * @param whenUnused runs once nobody looks at them any more
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
    Optional<RingSchema> arrow = RingSchema.of(ring);
    return arrow.isPresent()
        ? new ArrowColumns(arrow.get(), columns)
        : new QueueTableColumns(ring, columns);
  }
}
