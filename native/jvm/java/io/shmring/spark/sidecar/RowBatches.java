package io.shmring.spark.sidecar;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.RootWriter;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;

/**
 * Cuts rows into batches. A batch keeps its vectors until its request is answered, as the sidecar may
 * have to be asked again; then the next one is written into the same memory.
 */
final class RowBatches implements AutoCloseable {
  /** Vectors of one batch, used again and again. */
  record Vectors(VectorSchemaRoot root, RootWriter writer) {}

  private final Iterator<InternalRow> rows;
  private final Schema schema;
  private final byte[] schemaBytes;
  private final UnsafeProjection unsafe;
  private final BufferAllocator allocator;
  private final int mostRows;
  private final long mostBytes;
  private final List<Vectors> all = new ArrayList<>();
  private final ArrayDeque<Vectors> free = new ArrayDeque<>();
  private UnsafeRow carried; // a row that did not fit into the batch before
  private long count;

  RowBatches(
      Iterator<InternalRow> rows,
      StructType types,
      Schema schema,
      BufferAllocator allocator,
      int mostRows,
      long mostBytes) {
    this.rows = rows;
    this.schema = schema;
    this.schemaBytes = EncodedBatch.schemaBytes(schema);
    this.unsafe = UnsafeProjection.create(types);
    this.allocator = allocator;
    this.mostRows = mostRows;
    this.mostBytes = mostBytes;
  }

  boolean hasNext() {
    return carried != null || rows.hasNext();
  }

  /** How many rows there were so far. */
  long count() {
    return count;
  }

  /** The next rows, written; {@link #hasNext} must say that there are some. */
  Vectors next() {
    Vectors vectors = free.isEmpty() ? make() : free.pop();
    RootWriter writer = vectors.writer;
    writer.reset();
    long bytes = 0;
    int written = 0;
    while (written < mostRows && bytes < mostBytes && hasNext()) {
      UnsafeRow row = carried == null ? taken(rows.next()) : carried;
      carried = null;
      if (written > 0 && bytes + row.getSizeInBytes() > mostBytes) {
        carried = row.copy();
        break;
      }
      writer.write(row);
      bytes += row.getSizeInBytes();
      written++;
    }
    writer.finish();
    count += written;
    return vectors;
  }

  private UnsafeRow taken(InternalRow row) {
    return row instanceof UnsafeRow ready ? ready : unsafe.apply(row);
  }

  private Vectors make() {
    VectorSchemaRoot root = VectorSchemaRoot.create(schema, allocator);
    Vectors vectors = new Vectors(root, RootWriter.of(root));
    all.add(vectors);
    return vectors;
  }

  EncodedBatch encoded(Vectors vectors) {
    return new EncodedBatch(vectors.root, schemaBytes);
  }

  /** The vectors are not needed any more. */
  void giveBack(Vectors vectors) {
    free.push(vectors);
  }

  @Override
  public void close() {
    all.forEach(vectors -> vectors.root.close());
  }
}
