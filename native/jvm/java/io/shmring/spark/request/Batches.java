package io.shmring.spark.request;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.RootWriter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * The batches of a task. A batch, or several one behind the other, keeps its vectors until its request
 * is answered, as the sidecar may have to be asked again; then the next one is written into the same
 * memory.
 */
final class Batches implements AutoCloseable {
  // Rows without columns have no bytes that would bound them.
  private static final int MOST_ROWS = 1 << 24;

  /** A limit that no batch reaches; twice that is a number, too. */
  static final long UNLIMITED = Long.MAX_VALUE / 2;

  // Beyond that many bytes a request's own cost hardly counts.
  private static final long MOST_TOGETHER = 1 << 20;

  // A batch that is ready waits no longer for others than this, save for the one under way.
  private static final long READY_NANOS = 1_000_000;

  // Requests that are of one batch after the child has made such a batch wait.
  private static final int ALONE = 16;

  /** Vectors of one request, used again and again. */
  static final class Vectors {
    private final VectorSchemaRoot root;
    private final RootWriter writer;
    private VectorSchemaRoot part; // the root itself if it is all
    private int filled; // with so many of the input's rows

    private Vectors(VectorSchemaRoot root, Call call) {
      this.root = root;
      this.part = root;
      this.writer = new RootWriter(root, call.wholeBytes(), call.isStruct());
    }

    int rows() {
      return root.getRowCount();
    }

    /** Of all columns. */
    long bytes() {
      return root.getFieldVectors().stream().mapToLong(FieldVector::getBufferSize).sum();
    }

    /** Some of the rows, until others are asked for, or the vectors are given back. */
    VectorSchemaRoot part(int first, int count) {
      leavePart();
      part = root.slice(first, count);
      return part;
    }

    private void leavePart() {
      if (part != root) {
        part.close();
        part = root;
      }
    }

    private void close() {
      leavePart();
      root.close();
    }
  }

  private final Input input;
  private final Call call;
  private final Schema schema;
  private final Signature.Sent sent;
  private final byte[] schemaBytes; // of that
  private final BufferAllocator allocator;
  private final VectorMemory memory;
  private final int mostRows;
  private long mostBytes;
  private final List<Vectors> all = new ArrayList<>();
  private final ArrayDeque<Vectors> free = new ArrayDeque<>();
  private final ArrayDeque<Vectors> ahead = new ArrayDeque<>(); // which the input writes already
  private long rows; // since they were taken
  private long count; // of batches, the same
  private int alone; // requests that still go so

  /**
   * @param call whose the batches are
   */
  Batches(
      Input input,
      Call call,
      Signature signature,
      BufferAllocator allocator,
      VectorMemory memory,
      int mostRows) {
    this.input = input;
    this.call = call;
    this.schema = signature.columns();
    this.sent = signature.sent();
    this.schemaBytes = EncodedBatch.schemaBytes(sent.schema());
    this.allocator = allocator;
    this.memory = memory;
    this.mostRows = Math.min(mostRows, MOST_ROWS);
    this.mostBytes = call.firstBytes();
    input.writeTo(
        () -> {
          ahead.add(empty());
          return ahead.getLast().writer;
        },
        this.mostRows,
        mostBytes);
  }

  /**
   * Must be called before the first batch is asked for, if there is a limit that is known only then.
   *
   * @param bytes of a batch's rows with what is kept of them, unless one row alone has more
   */
  void limit(long bytes) {
    mostBytes = bytes;
  }

  boolean hasNext() {
    return input.hasNext();
  }

  /** How many rows there were since the last call of this. */
  long takeRows() {
    long taken = rows;
    rows = 0;
    return taken;
  }

  /** How many batches, the same. */
  long takeCount() {
    long taken = count;
    count = 0;
    return taken;
  }

  /** Rows that the function gets at a time; 0: all of a request. */
  int rowsAtATime() {
    return input.isJoined() ? mostRows : 0;
  }

  /**
   * The next batches, written; {@link #hasNext} must say that there are some. They are as many as the
   * child gives without delay.
   *
   * @param most where they may be joined at all
   */
  Vectors next(int most) {
    Vectors vectors = ahead.isEmpty() ? empty() : ahead.remove();
    int joined = alone > 0 ? 1 : most;
    alone = Math.max(0, alone - 1);
    long begun = System.nanoTime();
    long bytes = 0;
    int batches = 0;
    int filled = 0;
    int more;
    do {
      more = input.fill(vectors.writer, mostRows, mostBytes - bytes);
      filled += more;
      bytes += input.bytes();
      batches += more > 0 ? 1 : 0; // none where the rest has gone to another writer
    } while (batches < joined
        && input.isJoined()
        && more == mostRows // all but the last are whole
        && bytes + input.bytes() <= Math.min(MOST_TOGETHER, mostBytes / 2)
        && System.nanoTime() - begun < READY_NANOS
        && goesOn());
    input.cut(vectors.writer);
    vectors.filled = filled;
    rows += filled;
    count += batches;
    vectors.writer.finish();
    memory.hold(allocator.getAllocatedMemory());
    return vectors;
  }

  private boolean goesOn() {
    long asked = System.nanoTime();
    boolean more = input.hasNext();
    if (System.nanoTime() - asked > READY_NANOS) {
      alone = ALONE;
    }
    return more;
  }

  private Vectors empty() {
    if (free.isEmpty()) {
      Vectors vectors = new Vectors(VectorSchemaRoot.create(schema, allocator), call);
      all.add(vectors);
      return vectors;
    }
    Vectors vectors = free.pop();
    vectors.writer.reset();
    return vectors;
  }

  /** The request, which is closed before the vectors are given back. */
  EncodedBatch request(Vectors vectors) {
    List<FieldVector> columns = sent.columns().stream().map(vectors.root::getVector).toList();
    List<Field> fields = columns.stream().map(FieldVector::getField).toList();
    return new EncodedBatch(
        new VectorSchemaRoot(fields, columns, vectors.rows()), schemaBytes, vectors.filled);
  }

  /** The request is answered, and does not need the vectors any more. */
  void giveBack(Vectors vectors) {
    vectors.leavePart();
    free.push(vectors);
  }

  @Override
  public void close() {
    all.forEach(Vectors::close);
    memory.close();
  }
}
