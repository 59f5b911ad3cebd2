package io.shmring.arrow;

import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.arrow.flatbuf.Decimal;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.arrow.vector.util.TransferPair;

/**
 * Makes vectors of messages that hold a schema and a batch behind a head. The vectors need not be
 * closed; see {@link Block}.
 */
public final class StreamDecoder {
  private static final byte[] NONE = {};

  private final BufferAllocator allocator;
  private final Consumer<Schema> check;
  private byte[] last = NONE; // the schema of the decoder, as an IPC message
  private Optional<BatchDecoder> decoder = Optional.empty();

  /**
   * @param check called with each schema that differs from the last one; may throw
   */
  public StreamDecoder(BufferAllocator allocator, Consumer<Schema> check) {
    this.allocator = allocator;
    this.check = check;
  }

  /**
   * Returns a copy of the batch of a message.
   *
   * @param head number of bytes before the IPC messages
   */
  public VectorSchemaRoot copy(Message message, int head) {
    return decode(message, head, Optional.empty());
  }

  /**
   * Returns the batch of a message, in place.
   *
   * @param head number of bytes before the IPC messages
   * @param whenUnused runs when the vectors are closed; until then the caller keeps the message from
   *     being overwritten
   */
  public VectorSchemaRoot map(Message message, int head, Runnable whenUnused) {
    return decode(message, head, Optional.of(whenUnused));
  }

  /** Returns the batch of a stream that came in parts, and is in no message. */
  public VectorSchemaRoot read(byte[] stream) {
    return read(new ByteArrayInputStream(stream));
  }

  private VectorSchemaRoot read(InputStream stream) {
    last = NONE;
    try (ArrowStreamReader reader = new ArrowStreamReader(stream, allocator)) {
      VectorSchemaRoot read = reader.getVectorSchemaRoot();
      check.accept(read.getSchema());
      reader.loadNextBatch();
      List<FieldVector> taken = new ArrayList<>(); // the others are closed with the reader
      for (FieldVector vector : read.getFieldVectors()) {
        BatchCheck.check(vector, read.getRowCount());
        TransferPair pair = vector.getTransferPair(allocator);
        pair.transfer();
        taken.add((FieldVector) pair.getTo());
      }
      return new VectorSchemaRoot(read.getSchema().getFields(), taken, read.getRowCount());
    } catch (IOException error) {
      throw new RingException(
          Status.DAMAGED, "an answer in parts is no readable Arrow batch: " + error.getMessage());
    }
  }

  private VectorSchemaRoot decode(Message message, int head, Optional<Runnable> whenUnused) {
    Frame schema;
    byte[] bytes;
    try {
      schema = Frame.at(message, head);
      bytes = new byte[Math.toIntExact(schema.end() - head)];
      message.copyTo(head, ByteBuffer.wrap(bytes));
    } catch (RuntimeException error) {
      throw damaged(message, error);
    }
    if (!Arrays.equals(bytes, last) && !isTaken(message, schema, bytes)) {
      return read(RingSchema.stream(message, head));
    }
    try {
      return decoder
          .orElseThrow()
          .decode(message, schema.end(), () -> RingSchema.stream(message, head), whenUnused);
    } catch (IOException | RuntimeException error) {
      throw damaged(message, error);
    }
  }

  /**
   * Changes to another schema, if the check accepts it; returns whether its vectors can be made here.
   * Arrow's reader makes those of views, and of dictionaries' numbers, which Spark reads.
   */
  private boolean isTaken(Message message, Frame frame, byte[] bytes) {
    RingSchema schema;
    try {
      schema = RingSchema.of(bytes);
    } catch (IOException | RuntimeException error) {
      check.accept(named(frame).orElseThrow(() -> damaged(message, error)));
      return false;
    }
    check.accept(schema.stored());
    if (isOfReader(schema.stored().getFields())) {
      return false;
    }
    try {
      decoder = Optional.of(new BatchDecoder(schema, allocator));
    } catch (RuntimeException error) {
      throw damaged(message, error);
    }
    last = bytes;
    return true;
  }

  private static boolean isOfReader(List<Field> fields) {
    return fields.stream()
        .anyMatch(
            field ->
                field.getDictionary() != null
                    || field.getType() instanceof ArrowType.Utf8View
                    || field.getType() instanceof ArrowType.BinaryView
                    || isOfReader(field.getChildren()));
  }

  private static Optional<Schema> named(Frame schema) {
    try {
      return Optional.of(NamedTypes.of(schema));
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

  /**
   * A schema whose types have names, but perhaps no vectors: Arrow's own parser refuses decimals of less
   * than 128 bits.
   */
  private static final class NamedTypes {
    static Schema of(Frame message) {
      org.apache.arrow.flatbuf.Schema schema = new org.apache.arrow.flatbuf.Schema();
      message.metadata().header(schema);
      List<Field> fields = new ArrayList<>();
      for (int i = 0; i < schema.fieldsLength(); i++) {
        fields.add(field(schema.fields(i)));
      }
      return new Schema(fields);
    }

    private static Field field(org.apache.arrow.flatbuf.Field field) {
      List<Field> children = new ArrayList<>();
      for (int i = 0; i < field.childrenLength(); i++) {
        children.add(field(field.children(i)));
      }
      return new Field(field.name(), new FieldType(field.nullable(), type(field), null), children);
    }

    private static ArrowType type(org.apache.arrow.flatbuf.Field field) {
      if (field.typeType() != Type.Decimal) {
        return ArrowType.getTypeForField(field);
      }
      Decimal decimal = (Decimal) field.type(new Decimal());
      return new ArrowType.Decimal(decimal.precision(), decimal.scale(), decimal.bitWidth());
    }
  }
}
