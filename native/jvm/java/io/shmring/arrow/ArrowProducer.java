package io.shmring.arrow;

import io.shmring.Kind;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.time.Duration;
import java.util.OptionalLong;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Writes record batches into a ring that was created with their schema. */
public final class ArrowProducer implements AutoCloseable {
  private static final byte[] NOTHING = {};

  private final Ring ring;
  private final RingSchema schema;
  private final Producer producer;

  /**
   * @throws RingException if the ring has no Arrow schema, or a schema with dictionaries
   */
  public ArrowProducer(Ring ring, String name) {
    this.ring = ring;
    this.schema = RingSchema.required(ring);
    if (schema.hasDictionaries()) {
      throw new RingException(
          Status.INVALID, "ring \"%s\" has an Arrow schema with dictionaries", ring.name());
    }
    this.producer = ring.producer(name);
  }

  /** Publishes a batch as one message; returns empty if there was no room in time. */
  public OptionalLong write(VectorSchemaRoot root, Duration timeout) throws InterruptedException {
    if (!root.getSchema().equals(schema.stored())) {
      throw new RingException(
          Status.INVALID, "ring \"%s\" holds batches of %s, this is one of %s",
          ring.name(), schema.stored(), root.getSchema());
    }
    try (EncodedBatch batch = new EncodedBatch(root, NOTHING, root.getRowCount())) {
      return batch.push(producer, NOTHING, 0, batch.length(), Kind.ARROW_BATCH, timeout);
    }
  }

  /** Publishes the end marker, which ends the stream for every reader of every branch. */
  public void end() throws InterruptedException {
    producer.end();
  }

  @Override
  public void close() {
    producer.close();
  }
}
