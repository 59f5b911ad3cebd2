package io.shmring.sidecar;

import io.shmring.Message;
import io.shmring.arrow.StreamDecoder;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** Makes batches of a task's answers. */
final class AnswerDecoder {
  private final StreamDecoder stream;
  private final Consumer<Schema> check;
  private Schema request; // while an answer to it is decoded
  private Optional<Unchanged> unchanged = Optional.empty(); // in answers of the stream's schema

  /**
   * @param head number of bytes before the IPC messages
   * @param check called with each schema of a whole answer that differs from the last one
   */
  AnswerDecoder(int head, BufferAllocator allocator, Consumer<Schema> check) {
    this.stream = new StreamDecoder(head, allocator, this::take);
    this.check = check;
  }

  private void take(Schema own) {
    Optional<Unchanged> found = Unchanged.in(own, request);
    check.accept(found.map(Unchanged::schema).orElse(own));
    unchanged = found;
  }

  /** Decodes an answer in place; the request's columns are valid until it is closed. */
  VectorSchemaRoot map(Message message, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.map(message, () -> {}), sent);
  }

  /** Decodes a copy of an answer; the request's columns are not copied. */
  VectorSchemaRoot copy(Message message, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.copy(message), sent);
  }

  /** Decodes an answer that came in parts. */
  VectorSchemaRoot read(byte[] parts, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.read(parts), sent);
  }

  private VectorSchemaRoot whole(VectorSchemaRoot own, VectorSchemaRoot sent) {
    return unchanged.map(some -> some.whole(own, sent)).orElse(own);
  }
}
