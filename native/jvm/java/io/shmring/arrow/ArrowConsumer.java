package io.shmring.arrow;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Lease;
import io.shmring.Ring;
import io.shmring.RingException;
import java.time.Duration;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Reads record batches from a branch of a ring that was created with their schema. */
public final class ArrowConsumer implements AutoCloseable {
  private final Consumer consumer;
  private final BatchDecoder decoder;
  private boolean ended;

  /**
   * @param allocator the allocator for compressed and dictionary-encoded batches while they are
   *     decoded
   * @throws RingException if the ring has no Arrow schema
   */
  public ArrowConsumer(
      Ring ring, String branch, BranchOptions options, BufferAllocator allocator) {
    this.decoder = new BatchDecoder(RingSchema.required(ring), allocator);
    this.consumer = ring.consumer(branch, options);
  }

  /**
   * Returns a copy of the next batch. The garbage collector frees the copy, and closing the copy
   * does no harm. Returns empty if no batch came in time or the stream has ended.
   */
  public Optional<VectorSchemaRoot> read(Duration timeout) throws InterruptedException {
    ended = false;
    Optional<Lease> taken;
    // CHANGE: edit this for a new error
    try {
      taken = consumer.poll(timeout);
    } catch (EndOfStreamException end) {
      ended = true;
      return Optional.empty();
    }
    if (taken.isEmpty()) {
      return Optional.empty();
    }
    try (Lease lease = taken.get()) {
      return Optional.of(decoder.copy(lease.message()));
    }
  }

  /** Returns whether the last read reached the end of the stream. */
  public boolean ended() {
    return ended;
  }

  @Override
  public void close() {
    consumer.close();
  }
}
