package io.shmring.spark;

import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.RingSchema;
import java.io.IOException;
import java.nio.channels.FileChannel;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.util.ArrowUtils;

/** Rows as Arrow record batches of the ring's schema. */
final class ArrowRows extends RowEncoder {
  private final Ring ring;
  private final WriteOptions options;
  private final WriteChannel file;
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final ArrowWriter writer;
  private int rows;
  private long bytes;

  ArrowRows(Ring ring, RingSchema schema, WriteOptions options, FileChannel file) {
    this.ring = ring;
    this.options = options;
    this.file = new WriteChannel(file);
    this.allocator =
        ArrowUtils.rootAllocator().newChildAllocator("shmring writer", 0, Long.MAX_VALUE);
    this.root = VectorSchemaRoot.create(schema.plain(), allocator);
    this.writer = ArrowWriter.create(root);
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
    try (ArrowRecordBatch batch = new VectorUnloader(root).getRecordBatch()) {
      ArrowBlock block = MessageSerializer.serialize(file, batch);
      add(
          checked(block.getMetadataLength() + block.getBodyLength()), block.getMetadataLength());
    }
    writer.reset();
    rows = 0;
    bytes = 0;
  }

  private int checked(long length) {
    if (Producer.slotsFor(length, true) > ring.info().slots() / 2) {
      throw new RingException(
          Status.TOO_LARGE,
          String.format(
              "ring \"%s\": a batch of %d rows has %d bytes, more than half of the ring; lower"
                  + " .option(\"batchBytes\", ...), or create the ring with more slots",
              ring.name(), rows, length));
    }
    return Math.toIntExact(length);
  }

  @Override
  public void close() {
    root.close();
    allocator.close();
  }
}
