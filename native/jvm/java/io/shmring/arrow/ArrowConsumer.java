package io.shmring.arrow;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.time.Duration;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Reads record batches from a branch of a ring that was created with their schema. */
public final class ArrowConsumer implements AutoCloseable {
  private final Consumer consumer;
  private final BatchDecoder decoder;
  private boolean ended;

  /**
   * @param allocator for compressed and dictionary-encoded batches, while they are decoded
   * @throws RingException if the ring has no Arrow schema
   */
  public ArrowConsumer(
      Ring ring, String branch, BranchOptions options, BufferAllocator allocator) {
    RingSchema schema =
        RingSchema.of(ring)
            .orElseThrow(
                () ->
                    new RingException(
                        Status.INVALID,
                        String.format("ring \"%s\" has no Arrow schema", ring.name())));
    int columns = schema.plain().getFields().size();
    this.decoder = new BatchDecoder(schema, IntStream.range(0, columns).toArray(), allocator);
    this.consumer = ring.consumer(branch, options);
  }

  /**
   * The next batch, copied out: the garbage collector frees it, and closing it does no harm. Empty
   * if there was none in time, or at the end marker.
   */
  public Optional<VectorSchemaRoot> read(Duration timeout) throws InterruptedException {
    Optional<Lease> taken = consumer.poll(timeout);
    if (taken.isEmpty()) {
      return Optional.empty();
    }
    try (Lease lease = taken.get()) {
      Message message = lease.message();
      ended = message.isEnd();
      return ended ? Optional.empty() : Optional.of(decoder.copy(message));
    }
  }

  /** Whether the last message was the end marker. */
  public boolean ended() {
    return ended;
  }

  @Override
  public void close() {
    consumer.close();
  }
}
