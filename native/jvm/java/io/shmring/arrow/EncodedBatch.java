package io.shmring.arrow;

import io.shmring.Claim;
import io.shmring.Producer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.WritableByteChannel;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * A record batch that can be published as a message, several times if necessary. Its columns stay in
 * place, and are copied only into the claim.
 */
public final class EncodedBatch implements AutoCloseable {
  private static final int PREFIX = 8;

  private static final byte[] NOTHING = {};

  private final VectorSchemaRoot root;
  private final byte[] schema;
  private final int rows;
  private final ArrowRecordBatch batch;
  private final long body; // where it begins
  private final long length;

  /**
   * @param root keeps its values until this is closed
   */
  EncodedBatch(VectorSchemaRoot root) {
    this(root, NOTHING, root.getRowCount());
  }

  /**
   * @param schema turns it into a stream: see {@link #schemaBytes}
   * @param rows number of its rows, for the text of errors
   */
  public EncodedBatch(VectorSchemaRoot root, byte[] schema, int rows) {
    this.root = root;
    this.schema = schema;
    this.rows = rows;
    batch = RecordBatches.of(root);
    int metadata = MessageSerializer.serializeMetadata(batch, IpcOption.DEFAULT).remaining();
    body = schema.length + ((PREFIX + metadata + 7) & ~7);
    length = body + batch.computeBodyLength();
  }

  /** A schema as an IPC message. */
  public static byte[] schemaBytes(Schema schema) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try {
      MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), schema);
    } catch (IOException error) {
      throw new IllegalStateException(error); // an array does no input or output
    }
    return bytes.toByteArray();
  }

  /** What was encoded. */
  public VectorSchemaRoot columns() {
    return root;
  }

  public int rows() {
    return rows;
  }

  /** Bytes of the IPC messages. */
  public long length() {
    return length;
  }

  /**
   * Publishes the batch; returns empty if there was no room in time.
   *
   * @param head bytes before the IPC messages; their number is a multiple of 4
   */
  public OptionalLong push(Producer producer, byte[] head, int kind, Duration timeout)
      throws InterruptedException {
    Optional<Claim> claim =
        producer.claim(head.length + length, head.length + body, timeout);
    if (claim.isEmpty()) {
      return OptionalLong.empty();
    }
    try (Claim open = claim.get()) {
      open.put(0, ByteBuffer.wrap(head));
      long at = open.put(head.length, ByteBuffer.wrap(schema));
      MessageSerializer.serialize(new WriteChannel(new Into(open, at)), batch);
      open.commit(kind);
      return OptionalLong.of(open.id());
    } catch (IOException error) {
      throw new IllegalStateException(error); // a claim does no input or output
    }
  }

  /** Writes the IPC messages into memory, for a batch that no message of a ring takes. */
  public byte[] bytes() {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(Math.toIntExact(length));
    bytes.writeBytes(schema);
    try {
      MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), batch);
    } catch (IOException error) {
      throw new IllegalStateException(error); // an array does no input or output
    }
    return bytes.toByteArray();
  }

  @Override
  public void close() {
    batch.close();
  }

  /** A claim as a channel. */
  private static final class Into implements WritableByteChannel {
    private final Claim claim;
    private long offset;

    Into(Claim claim, long offset) {
      this.claim = claim;
      this.offset = offset;
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
