package io.shmring.arrow;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.BatchDecoder.Frame;
import io.shmring.arrow.BlockPool.Block;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
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
 * Makes vectors of a function's answers. An answer is a message with a head, a schema and a batch.
 * An answer may leave out columns that the function has passed on unchanged; the decoder takes
 * these columns from the request. The vectors of a message need not be closed; see {@link Block}.
 */
public final class AnswerDecoder {
  private static final byte[] NONE = {};
  // Key of the schema's metadata that names the columns which the function has passed on.
  private static final String UNCHANGED = "shmring.unchanged";
  private static final int OWN = -1;
  private static final ObjectMapper JSON = new ObjectMapper();

  private final BufferAllocator allocator;
  private final Consumer<Schema> check;
  private final LongConsumer passedOn;
  private byte[] last = NONE; // the schema of `decoder`, as an IPC message
  private Optional<BatchDecoder> decoder = Optional.empty();
  // Schema of the answer after the columns that it leaves out were added. accept() sets this field
  // when an answer has a new schema; empty if such an answer leaves out no column.
  private Optional<Schema> wholeSchema = Optional.empty();
  // Place in the request of each column of `wholeSchema`, or OWN if the answer has the column.
  private List<Integer> places = List.of();

  /**
   * @param check a check that is called with the schema of a whole answer, at least whenever the
   *     schema has changed since the last answer; may throw
   * @param passedOn takes the number of bytes of each column that an answer leaves out
   */
  public AnswerDecoder(
      BufferAllocator allocator, Consumer<Schema> check, LongConsumer passedOn) {
    this.allocator = allocator;
    this.check = check;
    this.passedOn = passedOn;
  }

  /**
   * Decodes an answer. The answer's vectors may read the columns of `sent`: close or refill `sent`
   * only after you have closed the answer.
   *
   * @param head number of bytes before the IPC messages in the message
   * @param sent the request's columns; may be empty if the answer leaves out no column
   * @param inPlace whether the vectors may also read the message, which you then release only after
   *     you have closed the answer; else the answer's own columns are copied out of the message
   */
  public VectorSchemaRoot decode(
      Message message, int head, VectorSchemaRoot sent, boolean inPlace) {
    String what = "message " + message.id();
    Optional<Runnable> whenUnused = inPlace ? Optional.of(() -> {}) : Optional.empty();
    byte[] schema = readable(what, () -> schemaBytes(message, head));
    if (!Arrays.equals(schema, last) && !isTaken(what, schema, sent.getSchema())) {
      byte[] all = message.bytes();
      InputStream stream = new ByteArrayInputStream(all, head, all.length - head);
      return read(what, stream, all.length, sent);
    }
    long batch = (long) head + schema.length;
    return whole(
        readable(what, () -> decoder.orElseThrow().decode(message, batch, whenUnused)), sent);
  }

  /** Decodes an answer that came in parts and was put together in memory. */
  public VectorSchemaRoot read(byte[] answer, VectorSchemaRoot sent) {
    readable("an answer in parts", () -> RingSchema.parse(answer));
    return read("an answer in parts", new ByteArrayInputStream(answer), answer.length, sent);
  }

  private VectorSchemaRoot read(
      String what, InputStream stream, long bytes, VectorSchemaRoot sent) {
    last = NONE;
    try (BufferAllocator limited =
            allocator.newChildAllocator("answer", 0, Arena.limit(bytes));
        ArrowStreamReader reader = new ArrowStreamReader(stream, limited)) {
      VectorSchemaRoot read = readable(what, reader::getVectorSchemaRoot);
      accept(read.getSchema(), sent.getSchema());
      return whole(readable(what, () -> loaded(reader, read)), sent);
    } catch (IOException error) {
      // Cannot happen: bytes in memory have no errors of input.
      throw new UncheckedIOException(error);
    }
  }

  private VectorSchemaRoot loaded(ArrowStreamReader reader, VectorSchemaRoot read)
      throws IOException {
    reader.loadNextBatch();
    for (FieldVector vector : read.getFieldVectors()) {
      BatchCheck.check(vector, read.getRowCount());
    }
    // Move the buffers to new vectors, because closing the reader closes the reader's vectors.
    List<FieldVector> taken = new ArrayList<>();
    for (FieldVector vector : read.getFieldVectors()) {
      TransferPair pair = vector.getTransferPair(allocator);
      pair.transfer();
      taken.add((FieldVector) pair.getTo());
    }
    return new VectorSchemaRoot(read.getSchema().getFields(), taken, read.getRowCount());
  }

  private static <T> T readable(String what, Callable<T> decoding) {
    return BatchDecoder.readable(what, "", decoding);
  }

  /** Returns the schema in a message, as an IPC message. */
  private static byte[] schemaBytes(Message message, int head) {
    byte[] schema = new byte[Math.toIntExact(Frame.at(message, head).end() - head)];
    message.copyTo(head, ByteBuffer.wrap(schema));
    return schema;
  }

  /**
   * Checks a schema that differs from the last answer's schema, and makes `decoder` for it. Returns
   * false, and makes no decoder, if the schema has views or dictionaries: the caller then uses
   * Arrow's ArrowStreamReader, so that Spark gets the same vectors as without rings. For example,
   * ArrowStreamReader leaves numbers in a column with a dictionary, but BatchDecoder would replace
   * the numbers by the dictionary's values.
   *
   * @param bytes the answer's schema, as an IPC message
   * @param request the schema of the request's columns
   */
  private boolean isTaken(String what, byte[] bytes, Schema request) {
    RingSchema schema = readable(what, () -> RingSchema.of(bytes));
    accept(schema.stored(), request);
    if (isOfReader(schema.stored().getFields())) {
      return false;
    }
    decoder = Optional.of(new BatchDecoder(schema, allocator));
    last = bytes;
    return true;
  }

  // CHANGE: edit this for a new type between Spark and Arrow
  private static boolean isOfReader(List<Field> fields) {
    return fields.stream()
        .anyMatch(
            field ->
                field.getDictionary() != null
                    || field.getType() instanceof ArrowType.Utf8View
                    || field.getType() instanceof ArrowType.BinaryView
                    || isOfReader(field.getChildren()));
  }

  /** Takes note of the columns that answers with a schema leave out, and checks the schema. */
  private void accept(Schema own, Schema request) {
    String said = own.getCustomMetadata().get(UNCHANGED);
    List<Integer> found = new ArrayList<>();
    Optional<Schema> whole =
        Optional.ofNullable(said).map(columns -> whole(own, request, columns, found));
    check.accept(whole.orElse(own));
    wholeSchema = whole;
    places = found;
  }

  /**
   * Returns the schema of a whole answer.
   *
   * @param own schema of the columns that the answer has itself
   * @param said text from the answer's metadata that names the columns which the answer leaves out;
   *     sidecars/wire.py describes the text's format
   * @param places an empty list, which gets the place in the request of each column of the whole
   *     answer, or OWN if the answer has the column itself
   * @throws RingException if `said` names columns that the request does not have, or does not fit
   *     the answer's own columns
   */
  private static Schema whole(Schema own, Schema request, String said, List<Integer> places) {
    List<Field> fields = new ArrayList<>();
    try {
      int next = 0;
      for (JsonNode column : JSON.readValue(said, JsonNode[].class)) {
        if (column.isNull()) {
          places.add(OWN);
          fields.add(own.getFields().get(next++));
        } else {
          int place = Integer.parseInt(column.required(1).asText());
          places.add(place);
          fields.add(named(column.required(0).asText(), request.getFields().get(place)));
        }
      }
      if (next == own.getFields().size()) {
        return new Schema(fields);
      }
    } catch (JsonProcessingException | RuntimeException error) {
      throw damaged(said);
    }
    throw damaged(said);
  }

  private static Field named(String name, Field field) {
    FieldType type = new FieldType(field.isNullable(), field.getType(), field.getDictionary());
    return new Field(name, type, field.getChildren());
  }

  // CHANGE: edit this for a new type between Spark and Arrow
  /**
   * Returns the whole answer: its own columns, and slices of the request's columns, which share the
   * request's memory. Closing the answer closes the slices but not the request's columns. If this
   * method throws, it closes the answer's own columns.
   */
  private VectorSchemaRoot whole(VectorSchemaRoot own, VectorSchemaRoot request) {
    if (wholeSchema.isEmpty()) {
      return own;
    }
    int rows = own.getRowCount();
    List<FieldVector> columns = new ArrayList<>();
    try {
      if (rows != request.getRowCount()) {
        throw damaged(rows + " rows of " + request.getRowCount());
      }
      int next = 0;
      for (int place : places) {
        if (place == OWN) {
          columns.add(own.getVector(next++));
        } else {
          columns.add(shared(request.getVector(place), rows));
          passedOn.accept(request.getVector(place).getBufferSize());
        }
      }
      return new VectorSchemaRoot(wholeSchema.get().getFields(), columns, rows);
    } catch (RuntimeException error) {
      columns.forEach(FieldVector::close);
      own.close();
      throw error;
    }
  }

  private static FieldVector shared(FieldVector column, int rows) {
    TransferPair pair = column.getTransferPair(column.getAllocator());
    pair.splitAndTransfer(0, rows);
    return (FieldVector) pair.getTo();
  }

  private static RingException damaged(String said) {
    return new RingException(
        Status.DAMAGED,
        "an answer leaves out columns that its request does not have (%s: %s); do client and"
            + " sidecar run the same shmring?",
        UNCHANGED, said);
  }
}
