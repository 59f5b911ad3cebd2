package io.shmring.sidecar;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.StreamDecoder;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.arrow.vector.util.TransferPair;

/** Makes batches of a task's answers. */
final class AnswerDecoder {
  private final StreamDecoder stream;
  private final Consumer<Schema> check;
  private Schema request; // while an answer to it is decoded
  private Optional<Unchanged> unchanged = Optional.empty(); // in answers of the stream's schema

  /**
   * @param check called with each schema of a whole answer that differs from the last one
   */
  AnswerDecoder(BufferAllocator allocator, Consumer<Schema> check) {
    this.stream = new StreamDecoder(allocator, this::take);
    this.check = check;
  }

  private void take(Schema own) {
    Optional<Unchanged> found = Unchanged.in(own, request);
    check.accept(found.map(Unchanged::schema).orElse(own));
    unchanged = found;
  }

  /**
   * Decodes an answer in place; the request's columns are valid until it is closed.
   *
   * @param head number of bytes before the IPC messages
   */
  VectorSchemaRoot map(Message message, int head, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.map(message, head, () -> {}), sent);
  }

  /** Decodes a copy of an answer; the request's columns are not copied. */
  VectorSchemaRoot copy(Message message, int head, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.copy(message, head), sent);
  }

  /** Decodes an answer that came in parts. */
  VectorSchemaRoot read(byte[] parts, VectorSchemaRoot sent) {
    request = sent.getSchema();
    return whole(stream.read(parts), sent);
  }

  private VectorSchemaRoot whole(VectorSchemaRoot own, VectorSchemaRoot sent) {
    return unchanged.map(some -> some.whole(own, sent)).orElse(own);
  }

  /**
   * Which columns an answer leaves out, because the function has passed on those of the request;
   * sidecars/wire.py describes how it says so.
   *
   * @param schema of the whole answer
   * @param places of its columns in the request; {@link #OWN} for those that the answer has
   */
  record Unchanged(Schema schema, List<Integer> places) {
    private static final String KEY = "shmring.unchanged";
    private static final int OWN = -1;
    private static final ObjectMapper JSON = new ObjectMapper();

    /**
     * @param own the answer's schema
     * @throws RingException if it names other columns than the request has
     */
    static Optional<Unchanged> in(Schema own, Schema request) {
      String said = own.getCustomMetadata().get(KEY);
      if (said == null) {
        return Optional.empty();
      }
      List<Field> fields = new ArrayList<>();
      List<Integer> places = new ArrayList<>();
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
          return Optional.of(new Unchanged(new Schema(fields), places));
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

    /**
     * The whole answer. When it is closed, so is its own part; the request's columns are not,
     * wherever they are closed, as Spark does with columns that it has made rows of.
     */
    VectorSchemaRoot whole(VectorSchemaRoot own, VectorSchemaRoot request) {
      int rows = own.getRowCount();
      if (rows != request.getRowCount()) {
        throw damaged(rows + " rows of " + request.getRowCount());
      }
      List<FieldVector> columns = new ArrayList<>();
      int next = 0;
      for (int place : places) {
        columns.add(place == OWN ? own.getVector(next++) : shared(request.getVector(place), rows));
      }
      return new VectorSchemaRoot(schema.getFields(), columns, rows);
    }

    private static FieldVector shared(FieldVector column, int rows) {
      TransferPair pair = column.getTransferPair(column.getAllocator());
      pair.splitAndTransfer(0, rows);
      return (FieldVector) pair.getTo();
    }

    private static RingException damaged(String said) {
      return new RingException(
          Status.DAMAGED,
          String.format(
              "an answer leaves out columns that its request does not have (%s: %s); do client and"
                  + " sidecar run the same shmring?",
              KEY, said));
    }
  }
}
