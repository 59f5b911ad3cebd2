package io.shmring.spark.request;

import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Signature.OfRows;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import scala.Function2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Collects a task's rows for the driver's Python, as the batches that Spark's own task would send.
 * The first batches stay in the task's result, as in Spark. Once they are too large together,
 * further ones are written into one of the driver's files. If a write fails, later batches are in
 * the result again.
 *
 * <p>The files have no names, and the driver's Python has them open. Processes of the same user on
 * the same host open them under /proc. The kernel frees a file when neither the driver's Python nor
 * a mapping of the file is left.
 *
 * @param <T> rows, or batches of columns
 * @param columns names and types of the rows' columns
 * @param batchRows rows of a batch; 0 or less for all rows
 * @param inlineBytes maximum bytes of the first batches in the task's result
 * @param files path and target of each file's link under /proc, such as "/proc/5/fd/7 /memfd:a
 *     (deleted)"; no other file's link has this target
 * @param mostBytes largest allowed size of the result
 * @param time metrics that count the milliseconds of the task
 */
public record CollectTask<T>(
    Source<T> source,
    StructType columns,
    SparkTypes types,
    int batchRows,
    long inlineBytes,
    List<String> files,
    long mostBytes,
    List<SQLMetric> time)
    implements Function2<TaskContext, Iterator<T>, byte[][]>, Serializable {
  private static final byte[] NO_SCHEMA = {};

  /** Alignment of the parts of a file: the largest page of a supported machine. */
  private static final long PAGE = 64 * 1024;

  /**
   * Factor that numbers all attempts of a task: ATTEMPTS * (number of the stage's attempt) +
   * (number of the task's attempt within it). The numbers differ, because a task has fewer than
   * ATTEMPTS attempts within one attempt of its stage. Each number stands for a part of a file.
   */
  private static final long ATTEMPTS = 256;

  /** Turns the child's iterator into an input of batches. */
  @FunctionalInterface
  public interface Source<T> extends Serializable {
    Input of(Iterator<T> child, StructType columns);

    /**
     * Returns a source of a child's rows. If the child is a stage of generated code that ends in
     * RowsToArrowExec, that code writes the rows into batches itself.
     */
    static Source<InternalRow> ofStage() {
      return (child, columns) ->
          Input.ofStage(CollectionConverters.asJava(child), () -> OfRows.unsafe(columns));
    }

    /**
     * Returns a source of batches of columns, which do not become rows.
     *
     * @param batches metrics that count the batches
     * @param rows metrics that count the rows
     */
    static Source<ColumnarBatch> ofColumns(List<SQLMetric> batches, List<SQLMetric> rows) {
      return (child, columns) ->
          new ColumnInput(
              CollectionConverters.asJava(
                  child.map(
                      batch -> {
                        batches.forEach(each -> each.add(1));
                        rows.forEach(each -> each.add(batch.numRows()));
                        return batch;
                      })));
    }
  }

  @Override
  public byte[][] apply(TaskContext context, Iterator<T> child) {
    long begun = System.nanoTime();
    try {
      return collect(context, child);
    } catch (IOException error) {
      Platform.throwException(error);
      throw new AssertionError(error); // unreachable: the line above throws
    } finally {
      time.forEach(each -> each.add((System.nanoTime() - begun) / 1_000_000));
    }
  }

  /**
   * Returns the result as arrays of bytes, because every serializer that Spark may use for results
   * takes them. The first array is a head; each other array is a batch. The head has, big-endian:
   *
   * <ul>
   *   <li>the bytes of all batches (long)
   *   <li>the stage to cancel if these bytes are too many, the partition, and the number of the
   *       file (ints)
   *   <li>offset and length of the task's part of the file (longs); 0 if there is none
   *   <li>the bytes of the batches in the arrays that come before the part, and of those that come
   *       after it (longs)
   * </ul>
   */
  private byte[][] collect(TaskContext context, Iterator<T> child) throws IOException {
    int most = batchRows > 0 ? Math.min(batchRows, RootWriter.MOST_ROWS) : RootWriter.MOST_ROWS;
    try (BufferAllocator allocator =
            ArrowUtils.rootAllocator().newChildAllocator("shmring collect", 0, Long.MAX_VALUE);
        VectorPool pool = new VectorPool(types.schema(columns), NO_SCHEMA, allocator);
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
      while (part.bytes <= mostBytes && input.hasNext()) { // a larger result fails the job
        context.killTaskIfInterrupted();
        Vectors vectors = ahead.isEmpty() ? pool.take(VectorPool.UNLIMITED) : ahead.remove();
        input.fill(vectors.writer(), most);
        input.cut();
        vectors.finish();
        Client.Rows rows = vectors.request(0);
        try {
          part.add(rows.batch());
        } finally {
          rows.close();
        }
      }
      return part.result();
    }
  }

  /** The batches of one attempt. */
  private final class Part implements AutoCloseable {
    private final TaskContext context;
    private final List<byte[]> inResult = new ArrayList<>();
    private int number; // number of the file in the driver's Python
    private Optional<FileChannel> file = Optional.empty(); // the file, while it is written to
    private boolean tried; // whether the task has tried to open the file
    private long bytes; // bytes of all batches
    private long before; // bytes of the batches in the result that come before those in the file
    private long begin; // offset of the first batch in the file
    private long end; // end of the last whole batch in the file

    Part(TaskContext context) {
      this.context = context;
    }

    void add(EncodedBatch batch) throws IOException {
      if (!tried && bytes + batch.length() > inlineBytes) {
        tried = true;
        before = bytes;
        open();
      }
      bytes += batch.length();
      // Batches past the limit are only counted: the file has no room for them.
      if (bytes <= mostBytes && !isInFile(batch)) {
        ByteArrayOutputStream message = new ByteArrayOutputStream((int) batch.length());
        batch.write(Channels.newChannel(message));
        inResult.add(message.toByteArray());
      }
    }

    /**
     * Opens one of the files, at a part to which no other attempt writes. `file` stays empty if
     * that is not possible: for example on another host, for another user, or if the part would lie
     * beyond the largest offset of a file.
     */
    private void open() throws IOException {
      long window = (mostBytes / PAGE + 1) * PAGE; // bytes from one part to the next
      long attempt = context.stageAttemptNumber() * ATTEMPTS + context.attemptNumber();
      long part = attempt * context.numPartitions() + context.partitionId();
      if (files.isEmpty() || part >= Long.MAX_VALUE / window) {
        return;
      }
      // Tasks that write to different files do not wait for each other.
      String[] link = files.get(context.partitionId() % files.size()).split(" ", 2);
      Path path = Path.of(link[0]);
      try {
        if (isLinkTo(path, link[1])) {
          file = Optional.of(FileChannel.open(path, READ, WRITE));
          begin = part * window;
          end = begin;
          file.get().position(begin);
          number = Integer.parseInt(path.getFileName().toString());
        }
        // Check the link again: the driver may close the file at any time, and its number may then
        // belong to another file.
        if (!isLinkTo(path, link[1])) {
          close();
        }
      } catch (FileSystemException refused) {
        close();
      }
    }

    private static boolean isLinkTo(Path path, String target) throws IOException {
      return Files.readSymbolicLink(path).toString().equals(target);
    }

    private boolean isInFile(EncodedBatch batch) throws IOException {
      if (file.isEmpty()) {
        return false;
      }
      try {
        batch.write(file.get());
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
      long kept = inResult.stream().mapToLong(message -> message.length).sum();
      ByteBuffer head = ByteBuffer.allocate(5 * Long.BYTES + 3 * Integer.BYTES).putLong(bytes);
      head.putInt(context.stageId()).putInt(context.partitionId()).putInt(number);
      head.putLong(begin).putLong(end - begin);
      inResult.add(0, head.putLong(before).putLong(kept - before).array());
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
