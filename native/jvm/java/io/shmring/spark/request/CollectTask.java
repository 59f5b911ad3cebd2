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
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Collects a task's rows for the driver's Python, as the batches that Spark's own task would send.
 * The first batches stay in the task's result, as in Spark. Once they are too large together,
 * further ones are written into one of the driver's files, as an Arrow stream. If a write fails,
 * later batches are in the result again.
 *
 * @param <T> rows, or batches of columns
 * @param columns names and types of the rows' columns
 * @param schema schema of the batches, as an IPC message
 * @param batchRows rows of a batch; 0 or less for all rows
 * @param inlineBytes most bytes of the first batches in the task's result
 */
public record CollectTask<T>(
    Source<T> source,
    StructType columns,
    byte[] schema,
    int batchRows,
    DriverFiles files,
    long inlineBytes)
    implements Serializable {
  /** Bytes of two ints at the end of a head, which the driver fills in. */
  public static final int DRIVERS_BYTES = 2 * Integer.BYTES;

  private static final int HEAD_BYTES = 3 * Long.BYTES + 3 * Integer.BYTES + DRIVERS_BYTES;

  /** Turns the child's iterator into an input of batches. */
  @FunctionalInterface
  public interface Source<T> extends Serializable {
    Input of(Iterator<T> child, StructType columns);

    /**
     * Returns a source of a stage's rows. The stage's code writes the rows into batches itself if
     * the stage ends in RowsToArrowExec.
     */
    static Source<InternalRow> ofStage() {
      return (child, columns) ->
          Input.ofStage(
              CollectionConverters.asJava(child), () -> OfRows.unsafe(columns));
    }

    /**
     * Returns a source of batches of columns, which do not become rows.
     *
     * @param batches metrics that count the batches
     * @param rows metrics that count the rows
     */
    static Source<ColumnarBatch> ofColumns(List<SQLMetric> batches, List<SQLMetric> rows) {
      return (child, columns) ->
          Input.ofColumns(
              CollectionConverters.asJava(
                  child.map(
                      batch -> {
                        batches.forEach(each -> each.add(1));
                        rows.forEach(each -> each.add(batch.numRows()));
                        return batch;
                      })));
    }
  }

  /**
   * Returns arrays of bytes, because every serializer that Spark may use for results takes them.
   * The first array is a head, the others are the batches in the result. The head has, big-endian:
   * the bytes of all batches (long); the stage to cancel if these bytes are too many (int); the
   * number of the file (int); offset and length of the task's part of the file, 0 if there is none
   * (longs); the number of batches in the result that come before the part (int); and two ints that
   * the driver fills in.
   */
  public byte[][] collect(TaskContext context, Iterator<T> child) throws IOException {
    ReadChannel message = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(schema)));
    int most = batchRows > 0 ? Math.min(batchRows, RootWriter.MOST_ROWS) : RootWriter.MOST_ROWS;
    try (BufferAllocator allocator =
            ArrowUtils.rootAllocator().newChildAllocator("shmring collect", 0, Long.MAX_VALUE);
        VectorPool pool =
            new VectorPool(MessageSerializer.deserializeSchema(message), schema, allocator);
        Part part = new Part(context)) {
      // Vectors that generated code has begun to fill before the task takes them.
      ArrayDeque<Vectors> ahead = new ArrayDeque<>();
      Input input = source.of(child, columns);
      input.writeTo(
          () -> {
            ahead.add(pool.take(VectorPool.UNLIMITED));
            return ahead.getLast().writer();
          },
          most);
      while (part.bytes <= files.mostBytes() && input.hasNext()) { // above it the job fails
        context.killTaskIfInterrupted();
        Vectors vectors = ahead.isEmpty() ? pool.take(VectorPool.UNLIMITED) : ahead.remove();
        input.fill(vectors.writer(), most);
        input.cut();
        vectors.finish();
        try (ArrowRecordBatch batch = EncodedBatch.batchOf(vectors.root())) {
          part.add(batch);
        }
        vectors.leave();
      }
      return part.result();
    }
  }

  private interface Step {
    void writeTo(WriteChannel channel) throws IOException;
  }

  /** The batches of one attempt. */
  private final class Part implements AutoCloseable {
    private final TaskContext context;
    private final List<byte[]> inResult = new ArrayList<>();
    private Optional<FileChannel> file = Optional.empty(); // the file, while it is written to
    private boolean tried; // whether the task has tried to open the file
    private int before; // number of batches in the result that come before those in the file
    private long bytes; // bytes of all batches
    private long begin; // offset of the stream in the file
    private long end; // end of the last whole batch in the file

    Part(TaskContext context) {
      this.context = context;
    }

    void add(ArrowRecordBatch batch) throws IOException {
      long more = batch.computeBodyLength();
      if (bytes + more > files.mostBytes()) {
        bytes += more; // counted, not written: the part is past its limit
        return;
      }
      if (bytes + more > inlineBytes && !tried) {
        begin();
      }
      Step step = channel -> MessageSerializer.serialize(channel, batch);
      if (!isWritten(step)) {
        ByteArrayOutputStream message = new ByteArrayOutputStream();
        step.writeTo(new WriteChannel(Channels.newChannel(message)));
        inResult.add(message.toByteArray());
        bytes += message.size();
      }
    }

    /** Begins a stream in the file. */
    private void begin() throws IOException {
      tried = true;
      before = inResult.size();
      file = files.open(context, schema.length);
      if (file.isPresent()) {
        begin = file.get().position();
        end = begin;
        isWritten(channel -> channel.write(schema));
      }
    }

    private boolean isWritten(Step step) throws IOException {
      if (file.isEmpty()) {
        return false;
      }
      try {
        step.writeTo(new WriteChannel(file.get()));
        bytes += file.get().position() - end;
        end = file.get().position();
        return true;
      } catch (ClosedByInterruptException killed) {
        throw killed;
      } catch (IOException full) {
        close();
        return false;
      }
    }

    byte[][] result() {
      ByteBuffer head = ByteBuffer.allocate(HEAD_BYTES).putLong(bytes).putInt(context.stageId());
      head.putInt(files.number(context)).putLong(begin).putLong(end - begin).putInt(before);
      inResult.add(0, head.array());
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
}
