package io.shmring.spark.request;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.job.DriverFiles;
import io.shmring.spark.request.Signature.OfRows;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Collects a task's rows for the driver's Python, as the batches that Spark's own task would send.
 * A few batches stay in the task's result, as in Spark. If there are more, all are written into one
 * of the driver's files, as an Arrow stream. If a write fails, later batches are in the result
 * again.
 *
 * @param <T> rows, or batches of columns
 * @param columns names and types of the rows' columns
 * @param schema schema of the batches, as an IPC message
 * @param batchRows rows of a batch; 0 or less for all rows
 * @param inlineBytes most bytes of batches that stay in the task's result
 */
public record CollectTask<T>(
    Source<T> source,
    StructType columns,
    byte[] schema,
    int batchRows,
    DriverFiles files,
    long inlineBytes)
    implements Serializable {
  /** Turns the child's iterator into an input of batches. */
  @FunctionalInterface
  public interface Source<T> extends Serializable {
    Batches.Input of(Iterator<T> child, StructType columns);

    /**
     * Returns a source of a stage's rows; its code writes them itself if it ends in
     * RowsToArrowExec.
     */
    static Source<InternalRow> ofStage() {
      return (child, columns) -> Batches.Input.ofStage(child, () -> OfRows.unsafe(columns));
    }

    /** Returns a source of batches of columns, which do not become rows. */
    static Source<ColumnarBatch> ofColumns() {
      return (child, columns) -> Batches.Input.ofColumns(child);
    }
  }

  /**
   * Describes what a task has collected: its size, and the part of a file that comes before the
   * batches in the task's result.
   *
   * @param bytes bytes of all batches
   * @param stage stage to cancel if the bytes are too many
   * @param file number of the file
   * @param place offset of the part in the file
   * @param length bytes of the part; 0 if there is none
   */
  public record Head(long bytes, int stage, int file, long place, long length) {
    private static final int BYTES = 3 * Long.BYTES + 2 * Integer.BYTES;

    /** Reads the first array of a task's result; the others are its batches. */
    public static Head of(byte[][] result) {
      ByteBuffer head = ByteBuffer.wrap(result[0]);
      return new Head(
          head.getLong(), head.getInt(), head.getInt(), head.getLong(), head.getLong());
    }

    private byte[] encoded() {
      ByteBuffer head = ByteBuffer.allocate(BYTES).putLong(bytes).putInt(stage).putInt(file);
      return head.putLong(place).putLong(length).array();
    }
  }

  /** Returns arrays of bytes, as any serializer that Spark may have for results takes them. */
  public byte[][] collect(TaskContext context, Iterator<T> child) throws IOException {
    ReadChannel message = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(schema)));
    int most = batchRows > 0 ? Math.min(batchRows, RootWriter.MOST_ROWS) : RootWriter.MOST_ROWS;
    try (BufferAllocator allocator =
            ArrowUtils.rootAllocator().newChildAllocator("shmring collect", 0, Long.MAX_VALUE);
        Pool pool = new Pool(MessageSerializer.deserializeSchema(message), allocator);
        Part part = new Part(context)) {
      Batches.Input input = source.of(child, columns);
      input.writeTo(pool::ahead, most);
      while (!part.isTooLarge() && input.hasNext()) {
        context.killTaskIfInterrupted();
        Vectors vectors = pool.next();
        input.fill(vectors.writer(), most);
        input.cut();
        vectors.writer().finish();
        try (ArrowRecordBatch batch = EncodedBatch.batchOf(vectors.root())) {
          part.add(batch);
        }
        pool.free.push(vectors);
      }
      return part.result();
    }
  }

  private interface Step {
    void writeTo(WritableByteChannel channel) throws IOException;
  }

  /** The batches of one attempt. */
  private final class Part implements AutoCloseable {
    private final TaskContext context;
    private final List<byte[]> inResult = new ArrayList<>();
    private Optional<FileChannel> file = Optional.empty(); // the file, while it is written to
    private boolean tried; // whether the file was to be opened
    private long bytes; // bytes of all batches
    private long begin; // offset of the stream in the file
    private long end; // end of the last whole batch in the file

    Part(TaskContext context) {
      this.context = context;
    }

    /** Whether the result's limit is passed, so that the job fails. */
    boolean isTooLarge() {
      return bytes > files.mostBytes();
    }

    void add(ArrowRecordBatch batch) throws IOException {
      Step step = channel -> MessageSerializer.serialize(new WriteChannel(channel), batch);
      long more = batch.computeBodyLength();
      if (bytes + more > files.mostBytes()) {
        bytes += more; // counted, not written: the part is past its limit
        return;
      }
      if (bytes + more > inlineBytes && !tried) {
        begin();
      }
      if (file.isEmpty() || !isWritten(step)) {
        ByteArrayOutputStream message = new ByteArrayOutputStream();
        step.writeTo(Channels.newChannel(message));
        inResult.add(message.toByteArray());
        bytes += message.size();
      }
    }

    /** Begins a stream in the file, with the batches that were to stay in the result. */
    private void begin() throws IOException {
      tried = true;
      file = files.open(context, schema.length);
      if (file.isPresent()) {
        begin = file.get().position();
        end = begin;
        inResult.add(0, schema);
        boolean moved =
            isWritten(
                channel -> {
                  for (byte[] message : inResult) {
                    new WriteChannel(channel).write(message);
                  }
                });
        inResult.subList(0, moved ? inResult.size() : 1).clear();
      }
    }

    private boolean isWritten(Step step) throws IOException {
      try {
        step.writeTo(file.get());
        end = file.get().position();
        bytes = end - begin; // all batches are in the file
        return true;
      } catch (ClosedByInterruptException killed) {
        throw killed;
      } catch (IOException full) {
        close();
        return false;
      }
    }

    byte[][] result() {
      Head head = new Head(bytes, context.stageId(), files.number(context), begin, end - begin);
      inResult.add(0, head.encoded());
      return inResult.toArray(byte[][]::new);
    }

    @Override
    public void close() throws IOException {
      if (file.isPresent()) {
        file.get().close();
        file = Optional.empty();
      }
    }
  }

  private record Vectors(VectorSchemaRoot root, RootWriter writer) {}

  /** Vectors, each used again for later batches. */
  private static final class Pool implements AutoCloseable {
    private final Schema schema;
    private final BufferAllocator allocator;
    private final List<VectorSchemaRoot> all = new ArrayList<>();
    private final ArrayDeque<Vectors> free = new ArrayDeque<>();
    // Generated code fills them already.
    private final ArrayDeque<Vectors> ahead = new ArrayDeque<>();
    private Optional<RootWriter> last = Optional.empty(); // the writer made last

    Pool(Schema schema, BufferAllocator allocator) {
      this.schema = schema;
      this.allocator = allocator;
    }

    /** Returns a writer for generated code, which may fill several before they are asked for. */
    RootWriter ahead() {
      ahead.add(empty());
      return ahead.getLast().writer();
    }

    Vectors next() {
      return ahead.isEmpty() ? empty() : ahead.remove();
    }

    private Vectors empty() {
      Vectors vectors = free.isEmpty() ? made() : free.pop();
      vectors.writer().reset(Long.MAX_VALUE / 2); // no limit of bytes; twice this does not overflow
      return vectors;
    }

    private Vectors made() {
      VectorSchemaRoot root = VectorSchemaRoot.create(schema, allocator);
      all.add(root);
      last = Optional.of(new RootWriter(root, last));
      return new Vectors(root, last.get());
    }

    @Override
    public void close() {
      all.forEach(VectorSchemaRoot::close);
    }
  }
}
