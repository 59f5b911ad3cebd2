package io.shmring.arrow;

import io.shmring.Claim;
import io.shmring.Kind;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;

/** Writes record batches into a ring that was created with their schema. */
public final class ArrowProducer implements AutoCloseable {
  private static final int PREFIX = 8;

  private final Ring ring;
  private final RingSchema schema;
  private final Producer producer;

  /**
   * @throws RingException if the ring has no Arrow schema, or one with dictionaries
   */
  public ArrowProducer(Ring ring, String name) {
    this.ring = ring;
    this.schema =
        RingSchema.of(ring)
            .filter(found -> !found.hasDictionaries())
            .orElseThrow(
                () ->
                    new RingException(
                        Status.INVALID,
                        String.format(
                            "ring \"%s\" has no Arrow schema, or one with dictionaries",
                            ring.name())));
    this.producer = ring.producer(name);
  }

  /** Publishes a batch as one message; empty if there was no room in time. */
  public OptionalLong write(VectorSchemaRoot root, Duration timeout) throws InterruptedException {
    if (!root.getSchema().equals(schema.stored())) {
      throw new RingException(
          Status.INVALID,
          String.format(
              "ring \"%s\" holds batches of %s, this is one of %s",
              ring.name(), schema.stored(), root.getSchema()));
    }
    try (ArrowRecordBatch batch = new VectorUnloader(root).getRecordBatch()) {
      int metadata = MessageSerializer.serializeMetadata(batch, IpcOption.DEFAULT).remaining();
      long head = (PREFIX + metadata + 7) & ~7;
      long length = head + batch.computeBodyLength();
      Optional<Claim> claim = producer.claimAligned(length, head, timeout);
      if (claim.isEmpty()) {
        return OptionalLong.empty();
      }
      try (Claim open = claim.get()) {
        MessageSerializer.serialize(new WriteChannel(new Into(open)), batch);
        open.commit(length, Kind.ARROW_BATCH);
        return OptionalLong.of(open.id());
      }
    } catch (IOException error) {
      throw new IllegalStateException(error); // a claim does no input or output
    }
  }

  /** Publishes the end marker: it ends the stream for every reader of every branch. */
  public void end() throws InterruptedException {
    producer.end();
  }

  @Override
  public void close() {
    producer.close();
  }

  /** A claim as a channel. */
  private static final class Into implements WritableByteChannel {
    private final Claim claim;
    private long offset;

    Into(Claim claim) {
      this.claim = claim;
    }

    @Override
    public int write(ByteBuffer from) {
      int count = from.remaining();
      offset = claim.put(offset, from);
      return count;
    }

    @Override
    public boolean isOpen() {
      return true;
    }

    @Override
    public void close() {}
  }
}
