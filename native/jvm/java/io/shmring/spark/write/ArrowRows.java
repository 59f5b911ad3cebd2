package io.shmring.spark.write;

import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.RingSchema;
import io.shmring.arrow.RecordBatches;
import io.shmring.spark.columns.RootWriter;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.util.ArrowUtils;

/** Rows as Arrow record batches of the ring's schema. */
final class ArrowRows extends RowEncoder {
  private final Ring ring;
  private final WriteOptions options;
  private final FileChannel file;
  private final Pieces pieces = new Pieces();
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final RootWriter writer;
  private int rows;
  private long bytes;

  ArrowRows(Ring ring, RingSchema schema, WriteOptions options, FileChannel file) {
    this.ring = ring;
    this.options = options;
    this.file = file;
    this.allocator =
        ArrowUtils.rootAllocator().newChildAllocator("shmring writer", 0, Long.MAX_VALUE);
    this.root = VectorSchemaRoot.create(schema.plain(), allocator);
    this.writer = new RootWriter(root);
  }

  @Override
  void write(InternalRow row) throws IOException {
    writer.write(row);
    rows++;
    bytes += row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : 8L * row.numFields();
    if (rows >= options.batchRows() || bytes >= options.batchBytes()) {
      flush();
    }
  }

  @Override
  void flush() throws IOException {
    if (rows == 0) {
      return;
    }
    writer.finish();
    try (ArrowRecordBatch batch = RecordBatches.of(root)) {
      ArrowBlock block = MessageSerializer.serialize(new WriteChannel(pieces), batch);
      pieces.writeTo(file);
      add(
          checked(block.getMetadataLength() + block.getBodyLength()), block.getMetadataLength());
    }
    writer.reset();
    rows = 0;
    bytes = 0;
  }

  private int checked(long length) {
    long needed = Producer.slotsFor(length, true);
    if (needed > ring.info().slots() / 2) {
      String larger =
          String.format("create the ring with %d slots", 2 * Long.highestOneBit(2 * needed - 1));
      throw new RingException(
          Status.TOO_LARGE,
          String.format(
              "ring \"%s\" of %d slots: %s %d bytes, more than half of the ring; %s",
              ring.name(),
              ring.info().slots(),
              rows == 1 ? "one row has" : String.format("a batch of %d rows has", rows),
              length,
              rows == 1 ? larger : "lower .option(\"batchBytes\", ...), or " + larger));
    }
    return Math.toIntExact(length);
  }

  @Override
  public void close() {
    root.close();
    allocator.close();
  }

  /**
   * Collects the pieces of a message, to write them to the file by one call. Columns stay in place; the
   * bytes between them come in arrays that the serializer uses again.
   */
  private static final class Pieces implements WritableByteChannel {
    private final List<ByteBuffer> pieces = new ArrayList<>();

    @Override
    public int write(ByteBuffer from) {
      int count = from.remaining();
      if (count > 0) {
        pieces.add(from.isDirect() ? from.slice() : ByteBuffer.allocate(count).put(from).flip());
        from.position(from.limit());
      }
      return count;
    }

    void writeTo(FileChannel file) throws IOException {
      ByteBuffer[] all = pieces.toArray(ByteBuffer[]::new);
      pieces.clear();
      while (all[all.length - 1].hasRemaining()) {
        file.write(all);
      }
    }

    @Override
    public boolean isOpen() {
      return true;
    }

    @Override
    public void close() {}
  }
}
