package io.shmring.spark.sidecar;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.RootColumns;
import io.shmring.spark.columns.RootWriter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The batches of a task. A batch keeps its vectors until its request is answered, as the sidecar may
 * have to be asked again; then the next one is written into the same memory.
 */
final class Batches implements AutoCloseable {
  // Rows without columns have no bytes that would bound them.
  private static final int MOST_ROWS = 1 << 24;

  /** Vectors of one batch, used again and again. */
  static final class Vectors {
    private final VectorSchemaRoot root;
    private final RootWriter writer;
    private int requests; // that are not answered yet
    private int filled; // with so many of the input's rows

    private Vectors(VectorSchemaRoot root) {
      this.root = root;
      this.writer = new RootWriter(root);
    }

    int rows() {
      return root.getRowCount();
    }

    ColumnarBatch columns() {
      return RootColumns.of(root);
    }
  }

  private final Input input;
  private final Schema schema;
  private final List<Signature.Part> parts;
  private final List<byte[]> schemaBytes; // of these
  private final BufferAllocator allocator;
  private final VectorMemory memory;
  private final int mostRows;
  private final long mostBytes;
  private final List<Vectors> all = new ArrayList<>();
  private final ArrayDeque<Vectors> free = new ArrayDeque<>();
  private long count;

  /**
   * @param mostBytes of a batch's rows with what is kept of them, unless one row alone has more
   */
  Batches(
      Input input,
      Signature signature,
      BufferAllocator allocator,
      VectorMemory memory,
      int mostRows,
      long mostBytes) {
    this.input = input;
    this.schema = signature.columns();
    this.parts = signature.parts();
    this.schemaBytes =
        parts.stream().map(part -> EncodedBatch.schemaBytes(part.schema())).toList();
    this.allocator = allocator;
    this.memory = memory;
    this.mostRows = Math.min(mostRows, MOST_ROWS);
    this.mostBytes = mostBytes;
  }

  boolean hasNext() {
    return input.hasNext();
  }

  /** How many rows there were so far. */
  long count() {
    return count;
  }

  /** The next rows, written; {@link #hasNext} must say that there are some. */
  Vectors next() {
    Vectors vectors = free.isEmpty() ? make() : free.pop();
    vectors.writer.reset();
    vectors.filled = input.fill(vectors.writer, mostRows, mostBytes);
    count += vectors.filled;
    vectors.writer.finish();
    memory.hold(allocator.getAllocatedMemory());
    return vectors;
  }

  private Vectors make() {
    Vectors vectors = new Vectors(VectorSchemaRoot.create(schema, allocator));
    all.add(vectors);
    return vectors;
  }

  /** How many requests a batch becomes. */
  int requests() {
    return parts.size();
  }

  /** One of a batch's requests, which is closed before the batch is given back. */
  EncodedBatch request(Vectors vectors, int request) {
    List<FieldVector> columns =
        parts.get(request).columns().stream().map(vectors.root::getVector).toList();
    List<Field> fields = columns.stream().map(FieldVector::getField).toList();
    EncodedBatch encoded =
        new EncodedBatch(
            new VectorSchemaRoot(fields, columns, vectors.rows()),
            schemaBytes.get(request),
            vectors.filled);
    vectors.requests++;
    return encoded;
  }

  /** One of the requests is answered, and does not need the vectors any more. */
  void giveBack(Vectors vectors) {
    vectors.requests--;
    if (vectors.requests == 0) {
      free.push(vectors);
    }
  }

  @Override
  public void close() {
    all.forEach(vectors -> vectors.root.close());
    memory.close();
  }
}
