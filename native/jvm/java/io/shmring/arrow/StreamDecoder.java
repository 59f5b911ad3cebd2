package io.shmring.arrow;

import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Makes vectors of messages that hold a schema and a batch behind a head of their own. The vectors
 * need not be closed; see {@link Block}.
 */
public final class StreamDecoder {
  private static final byte[] NONE = {};

  private final int head;
  private final BufferAllocator allocator;
  private final Consumer<Schema> check;
  private byte[] last = NONE; // the schema of the decoder, as an IPC message
  private Optional<BatchDecoder> decoder = Optional.empty();

  /**
   * @param head bytes that stand before the IPC messages
   * @param check called with each schema that is another one than the last; what it throws is thrown
   */
  public StreamDecoder(int head, BufferAllocator allocator, Consumer<Schema> check) {
    this.head = head;
    this.allocator = allocator;
    this.check = check;
  }

  /** The batch of a message, copied out. */
  public VectorSchemaRoot copy(Message message) {
    return decode(message, Optional.empty());
  }

  /**
   * The batch of a message, where it lies.
   *
   * @param whenUnused runs when the vectors are closed; until then the caller sees to it that nobody
   *     overwrites the message
   */
  public VectorSchemaRoot map(Message message, Runnable whenUnused) {
    return decode(message, Optional.of(whenUnused));
  }

  private VectorSchemaRoot decode(Message message, Optional<Runnable> whenUnused) {
    Frame schema;
    byte[] bytes;
    try {
      schema = Frame.at(message, head);
      bytes = new byte[Math.toIntExact(schema.end() - head)];
      message.copyTo(head, ByteBuffer.wrap(bytes));
    } catch (RuntimeException error) {
      throw damaged(message, error);
    }
    if (!Arrays.equals(bytes, last)) {
      take(message, schema, bytes);
    }
    try {
      return decoder
          .orElseThrow()
          .decode(message, schema.end(), () -> RingSchema.stream(message, head), whenUnused);
    } catch (IOException | RuntimeException error) {
      throw damaged(message, error);
    }
  }

  /** Takes another schema, if there is nothing against it. */
  private void take(Message message, Frame frame, byte[] bytes) {
    RingSchema schema;
    try {
      schema = RingSchema.of(bytes);
    } catch (IOException | RuntimeException error) {
      named(frame).ifPresent(check); // which says it better
      throw damaged(message, error);
    }
    check.accept(schema.stored());
    try {
      decoder = Optional.of(new BatchDecoder(schema, allocator));
    } catch (RuntimeException error) {
      throw damaged(message, error);
    }
    last = bytes;
  }

  private static Optional<Schema> named(Frame schema) {
    try {
      return Optional.of(NamedSchema.of(schema));
    } catch (RuntimeException error) {
      return Optional.empty();
    }
  }

  private static RingException damaged(Message message, Exception error) {
    return new RingException(
        Status.DAMAGED,
        String.format(
            "message %d holds no readable Arrow batch: %s", message.id(), error.getMessage()));
  }
}
