package io.shmring.spark.write;

import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.WRITE;

import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.EncodedBatch;
import io.shmring.arrow.RingSchema;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.job.RingPlace;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowBlock;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** Stages the rows of one task as messages, one after the other in the task's own file. */
abstract class PartWriter implements DataWriter<InternalRow> {
  private final Path path;
  final FileChannel file;
  private long rows;
  private final IntStream.Builder lengths = IntStream.builder();
  private final IntStream.Builder aligns = IntStream.builder();

  private PartWriter(Path path, FileChannel file) {
    this.path = path;
    this.file = file;
  }

  @Override
  public void write(InternalRow row) throws IOException {
    rows++;
    encode(row);
  }

  abstract void encode(InternalRow row) throws IOException;

  /** Writes the rows that are still in memory to the task's file. */
  abstract void flush() throws IOException;

  void add(int length, int align) {
    lengths.accept(length);
    aligns.accept(align);
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    flush();
    file.close();
    return new RingJob.StagedFile(
        path.toString(), rows, lengths.build().toArray(), aligns.build().toArray());
  }

  @Override
  public void abort() throws IOException {
    file.close();
    Files.deleteIfExists(path);
  }

  @Override
  public void close() throws IOException {
    file.close();
  }

  /**
   * Opens a task's writer.
   *
   * @param place the ring, on the driver's host
   * @param folder folder for staged files, which the driver has made
   */
  record PartWriterFactory(
      WriteOptions options, StructType schema, RingPlace place, String folder)
      implements DataWriterFactory, StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      Path path = Path.of(folder, partition + "-" + task);
      try (Ring ring = place.attachReadOnly(options.hostWaitMillis())) {
        FileChannel file = FileChannel.open(path, CREATE_NEW, WRITE);
        Optional<RingSchema> arrow = RingSchema.of(ring);
        return arrow.isPresent()
            ? new ArrowRows(path, file, ring, arrow.get(), options)
            : new ByteRows(path, file, schema);
      } catch (IOException error) {
        throw new UncheckedIOException("cannot stage rows in " + path, error);
      }
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return createWriter(partition, task);
    }
  }

  /** Writes rows of one column, binary or text: each value (text as UTF-8) is a message. */
  static final class ByteRows extends PartWriter {
    private static final int BUFFER = 1 << 18;

    private final boolean text;
    private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER);

    ByteRows(Path path, FileChannel file, StructType rows) {
      super(path, file);
      this.text = rows.fields()[0].dataType().equals(DataTypes.StringType);
    }

    @Override
    void encode(InternalRow row) throws IOException {
      if (row.isNullAt(0)) {
        throw new IllegalArgumentException("a message cannot be null");
      }
      byte[] message = text ? row.getUTF8String(0).getBytes() : row.getBinary(0);
      add(message.length, -1);
      if (message.length > buffer.remaining()) {
        flush();
      }
      if (message.length > buffer.capacity()) {
        write(ByteBuffer.wrap(message));
      } else {
        buffer.put(message);
      }
    }

    @Override
    void flush() throws IOException {
      buffer.flip();
      write(buffer);
      buffer.clear();
    }

    private void write(ByteBuffer bytes) throws IOException {
      while (bytes.hasRemaining()) {
        file.write(bytes);
      }
    }
  }

  /** Writes rows as Arrow record batches of the ring's schema. */
  static final class ArrowRows extends PartWriter {
    private final Ring ring;
    private final WriteOptions options;
    private final Pieces pieces = new Pieces();
    private final BufferAllocator allocator;
    private final VectorSchemaRoot root;
    private final RootWriter writer;

    ArrowRows(
        Path path, FileChannel file, Ring ring, RingSchema schema, WriteOptions options) {
      super(path, file);
      this.ring = ring;
      this.options = options;
      this.allocator =
          ArrowUtils.rootAllocator().newChildAllocator("shmring writer", 0, Long.MAX_VALUE);
      this.root = VectorSchemaRoot.create(schema.plain(), allocator);
      this.writer = new RootWriter(root);
    }

    @Override
    void encode(InternalRow row) throws IOException {
      writer.write(
          row, row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : 8L * row.numFields());
      if (writer.rows() >= options.batchRows() || writer.bytes() >= options.batchBytes()) {
        flush();
      }
    }

    @Override
    void flush() throws IOException {
      if (writer.rows() == 0) {
        return;
      }
      writer.finish();
      try (ArrowRecordBatch batch = EncodedBatch.batchOf(root)) {
        ArrowBlock block = MessageSerializer.serialize(new WriteChannel(pieces), batch);
        pieces.writeTo(file);
        add(
            checked(block.getMetadataLength() + block.getBodyLength()), block.getMetadataLength());
      }
      writer.reset(Long.MAX_VALUE);
    }

    private int checked(long length) {
      int rows = writer.rows();
      long needed = Producer.slotsFor(length, true);
      if (needed > ring.info().slots() / 2) {
        String larger =
            String.format("create the ring with %d slots", 2 * Long.highestOneBit(2 * needed - 1));
        throw new RingException(
            Status.TOO_LARGE,
            "ring \"%s\" of %d slots: %s %d bytes, more than half of the ring; %s",
            ring.name(), ring.info().slots(),
            rows == 1 ? "one row has" : String.format("a batch of %d rows has", rows), length,
            rows == 1 ? larger : "lower .option(\"batchBytes\", ...), or " + larger);
      }
      return Math.toIntExact(length);
    }

    @Override
    public void close() throws IOException {
      root.close();
      allocator.close();
      super.close();
    }

    /**
     * Collects the buffers of a message, so that one call writes them to the file. Direct buffers
     * (the columns) are kept as they are. Bytes from Java arrays (the metadata and padding between
     * the columns) are copied, because the serializer may overwrite its arrays after write().
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
}
