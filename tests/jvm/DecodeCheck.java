package io.shmring.exchange;

import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client.Rows;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/** Decodes damaged answers of a Python worker; prints each error, and the bytes left allocated. */
public final class DecodeCheck {
  private static final int BATCH = 2;
  private static final int REFERS = 4;
  private static final int PART = 8;
  private static final int HEAD_BYTES = 64;
  private static final int ROWS = 3;

  private DecodeCheck() {}

  public static void main(String[] arguments) throws Exception {
    decode(REFERS, ROWS, 2, 1, 1); // one message; the row counts do not add up
    decode(REFERS | PART, ROWS - 1, 0); // in parts; the answer has fewer rows than its request
    decode(REFERS | PART, ROWS, 1); // in parts; the head says that a row count follows
  }

  /**
   * @param rows number of rows of the answer
   * @param together number of row counts, as the answer's head says it
   * @param counts row counts that follow the head
   */
  private static void decode(int flags, int rows, int together, int... counts) throws Exception {
    try (RootAllocator ours = new RootAllocator();
        RootAllocator worker = new RootAllocator();
        WorkerRings rings = WorkerRings.make(0, Path.of("."));
        Ring ring = Ring.attach(rings.paths().get(1));
        Producer producer = ring.producer("worker");
        VectorSchemaRoot sent = columns(ours, ROWS, Map.of());
        VectorSchemaRoot own =
            columns(worker, rows, Map.of("shmring.unchanged", "[[\"b\", \"0\"], null]"))) {
      rings.enter();
      WorkerClient client =
          new WorkerClient(
              rings, 1, new Silent(), () -> {}, (name, more) -> {}, ours, got -> {});
      byte[] schema = sent.getSchema().serializeAsMessage();
      EncodedBatch request = new EncodedBatch(sent, schema, ROWS);
      client.send(new Rows(request, 0, 0, new int[0], false, () -> {}));
      byte[] answer = ipc(own);
      long before = ours.getAllocatedMemory();
      int half = (flags & PART) == 0 ? 0 : answer.length / 2;
      if (half > 0) {
        push(producer, flags, answer.length, Arrays.copyOf(answer, half), 0);
      }
      byte[] last = Arrays.copyOfRange(answer, half, answer.length);
      push(producer, flags & ~PART, answer.length, last, together, counts);
      try {
        client.next();
      } catch (RingException error) {
        System.out.println(error.getMessage());
      }
      System.out.println(ours.getAllocatedMemory() - before);
      client.close();
      rings.unlink();
    }
  }

  private static VectorSchemaRoot columns(
      BufferAllocator allocator, int rows, Map<String, String> metadata) {
    Field field = Field.nullable("a", new ArrowType.Int(Long.SIZE, true));
    VectorSchemaRoot root =
        VectorSchemaRoot.create(new Schema(List.of(field), metadata), allocator);
    BigIntVector vector = (BigIntVector) root.getVector(0);
    for (int i = 0; i < rows; i++) {
      vector.setSafe(i, i);
    }
    root.setRowCount(rows);
    return root;
  }

  private static byte[] ipc(VectorSchemaRoot root) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    byte[] schema = root.getSchema().serializeAsMessage();
    bytes.write(schema);
    try (EncodedBatch batch = new EncodedBatch(root, schema, root.getRowCount())) {
      batch.write(Channels.newChannel(bytes));
    }
    return bytes.toByteArray();
  }

  private static void push(
      Producer to, int flags, long total, byte[] part, int together, int... counts)
      throws Exception {
    int padded = (counts.length + 1) / 2 * 2 * Integer.BYTES;
    ByteBuffer message =
        ByteBuffer.allocate(HEAD_BYTES + padded + part.length).order(ByteOrder.LITTLE_ENDIAN);
    message.putLong(1).putLong(0).putLong(total).putInt(flags | BATCH).putInt(together);
    message.position(HEAD_BYTES);
    for (int count : counts) {
      message.putInt(count);
    }
    message.position(HEAD_BYTES + padded).put(part);
    to.push(message.array(), Duration.ZERO).orElseThrow();
  }

  /** A worker that says nothing on its socket. */
  private static final class Silent implements WorkerClient.Control {
    @Override
    public boolean isHeard() {
      return false;
    }

    @Override
    public void end() {}

    @Override
    public void isSilent(long nanos) {}
  }
}
