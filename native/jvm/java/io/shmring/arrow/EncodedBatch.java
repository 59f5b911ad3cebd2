package io.shmring.arrow;

import io.shmring.Claim;
import io.shmring.Producer;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.WritableByteChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BufferLayout.BufferType;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;

/**
 * A record batch that can be published as a message, several times if necessary. Its columns stay
 * in place, and are copied only into the claim.
 */
public final class EncodedBatch implements AutoCloseable {
  private static final int PREFIX = 8;

  private final VectorSchemaRoot root;
  private final byte[] schema;
  private final int rows;
  private final ArrowRecordBatch batch;
  private final long body; // offset of the batch's body in the IPC messages
  private final long length;

  /**
   * @param root the columns; they must not change until this object is closed
   * @param schema the schema as an IPC message, to be written before the batch and so to make a
   *     stream; empty for a batch alone
   * @param rows number of rows, for the text of errors
   */
  public EncodedBatch(VectorSchemaRoot root, byte[] schema, int rows) {
    this.root = root;
    this.schema = schema;
    this.rows = rows;
    batch = batchOf(root);
    int metadata = MessageSerializer.serializeMetadata(batch, IpcOption.DEFAULT).remaining();
    body = schema.length + ((PREFIX + metadata + 7) & ~7);
    length = body + batch.computeBodyLength();
  }

  /** Returns the encoded columns. */
  public VectorSchemaRoot columns() {
    return root;
  }

  /** Returns the schema that stands before the batch, as an IPC message. */
  public byte[] schema() {
    return schema;
  }

  public int rows() {
    return rows;
  }

  /** Returns the number of bytes of the IPC messages. */
  public long length() {
    return length;
  }

  /**
   * Publishes the bytes of the IPC messages, or a part of the bytes if the batch is too large for
   * one message of the ring. Returns empty if there was no room in time.
   *
   * @param head bytes to put before the IPC messages; their number is a multiple of 4
   * @param first number of the first byte to publish: 0 unless earlier parts were published
   * @param count number of bytes to publish: {@link #length} for the whole batch
   */
  public OptionalLong push(
      Producer producer, byte[] head, long first, long count, int kind, Duration timeout)
      throws InterruptedException {
    long align = first == 0 ? head.length + body : head.length;
    Optional<Claim> claim = producer.claim(head.length + count, align, timeout);
    if (claim.isEmpty()) {
      return OptionalLong.empty();
    }
    try (Claim open = claim.get()) {
      open.put(0, ByteBuffer.wrap(head));
      copy(first, open, head.length);
      open.commit(kind);
      return OptionalLong.of(open.id());
    }
  }

  /**
   * Fills a claim from offset `place` to the claim's end with the bytes of the IPC messages,
   * beginning with byte number `first`.
   */
  private void copy(long first, Claim claim, long place) {
    Into into = new Into(claim, place, first);
    into.write(ByteBuffer.wrap(schema));
    try {
      write(into);
    } catch (IOException error) {
      throw new IllegalStateException(error); // cannot happen: a claim does no input or output
    }
  }

  /** Writes the batch as an IPC message, without the schema. */
  public void write(WritableByteChannel into) throws IOException {
    MessageSerializer.serialize(new WriteChannel(into), batch);
  }

  @Override
  public void close() {
    batch.close();
  }

  /**
   * Returns the columns as a record batch that shares their buffers; the caller closes it. Arrow
   * 18, which Spark 4.1 has, leaves out the one offset of a column without values, for example the
   * inner columns of empty lists; this method puts the offset there, because readers crash without
   * it.
   */
  public static ArrowRecordBatch batchOf(VectorSchemaRoot root) {
    ArrowRecordBatch batch = new VectorUnloader(root).getRecordBatch();
    List<Integer> places = new ArrayList<>();
    int buffers = 0;
    for (FieldVector column : root.getFieldVectors()) {
      buffers = findMissing(column, buffers, batch.getBuffers(), places);
    }
    return places.isEmpty() ? batch : filled(batch, root, places);
  }

  /**
   * Finds the empty offset buffers of a column and of the columns below it, and adds the numbers of
   * these buffers to `places`.
   *
   * @param first number of the column's first buffer
   * @return the number of the next column's first buffer
   */
  private static int findMissing(
      FieldVector column, int first, List<ArrowBuf> buffers, List<Integer> places) {
    List<BufferType> types = TypeLayout.getTypeLayout(column.getField().getType()).getBufferTypes();
    int next = first + column.getFieldBuffers().size();
    for (int i = 0; i < types.size() && first + i < next; i++) {
      if (types.get(i) == BufferType.OFFSET && buffers.get(first + i).readableBytes() == 0) {
        places.add(first + i);
      }
    }
    for (FieldVector child : column.getChildrenFromFields()) {
      next = findMissing(child, next, buffers, places);
    }
    return next;
  }

  private static ArrowRecordBatch filled(
      ArrowRecordBatch batch, VectorSchemaRoot root, List<Integer> places) {
    List<ArrowBuf> buffers = new ArrayList<>(batch.getBuffers());
    try (batch;
        ArrowBuf zero = root.getVector(0).getAllocator().buffer(Long.BYTES)) {
      zero.writeLong(0);
      places.forEach(place -> buffers.set(place, zero));
      return new ArrowRecordBatch(
          batch.getLength(),
          batch.getNodes(),
          buffers,
          batch.getBodyCompression(),
          batch.getVariadicBufferCounts(),
          true);
    }
  }

  /**
   * A channel that writes one part of the IPC messages into a claim. Drops all bytes before the
   * part and after it.
   */
  private static final class Into implements WritableByteChannel {
    private final Claim claim;
    private long place; // offset of the next byte in the claim
    private long before; // bytes that are still to be dropped before the published part

    Into(Claim claim, long place, long first) {
      this.claim = claim;
      this.place = place;
      this.before = first;
    }

    @Override
    public int write(ByteBuffer from) {
      int count = from.remaining();
      int passed = (int) Math.min(before, count);
      before -= passed;
      int taken = (int) Math.min(count - passed, claim.length(0) - place);
      if (taken > 0) {
        place = claim.put(place, from.slice(from.position() + passed, taken));
      }
      from.position(from.limit());
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
