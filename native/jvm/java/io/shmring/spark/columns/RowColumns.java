package io.shmring.spark.columns;

import java.util.Iterator;
import java.util.Optional;
import java.util.function.Function;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes columnar batches of rows, a few rows at a time. */
public final class RowColumns implements AutoCloseable {
  private static final int MOST_ROWS = 1024;
  private static final long MOST_BYTES = 1 << 16;

  private final VectorSchemaRoot root;
  private final RootWriter writer;
  // Columns given out: a slice of `root`, and not `root` itself, because Spark's ColumnarToRow
  // closes the columns that it has read.
  private Optional<VectorSchemaRoot> given = Optional.empty();
  // Error of the row after the columns returned last; null if there was none.
  private RuntimeException failure;

  public RowColumns(Schema schema, BufferAllocator allocator) {
    this.root = VectorSchemaRoot.create(schema, allocator);
    this.writer = new RootWriter(root);
  }

  /** Returns whether the next call of {@link #next} raises the error of a row. */
  public boolean hasFailed() {
    return failure != null;
  }

  /**
   * Returns the columns of the next rows, which are valid until the next call. If a row cannot be
   * made, the columns end before that row, and the next call raises the row's error. A query with a
   * limit may not need the row: then there is no next call, and no error.
   *
   * @param rows the next rows: at least one
   * @param made a function that turns each row into the row to write
   */
  public ColumnarBatch next(
      Iterator<InternalRow> rows, Function<InternalRow, UnsafeRow> made) {
    if (hasFailed()) {
      throw failure;
    }
    given.ifPresent(VectorSchemaRoot::close);
    writer.reset(MOST_BYTES);
    try {
      do {
        UnsafeRow row = made.apply(rows.next());
        writer.write(row, row.getSizeInBytes());
      } while (rows.hasNext() && writer.rows() < MOST_ROWS && writer.room() > 0);
    } catch (RuntimeException error) {
      failure = error;
      if (writer.rows() == 0) {
        throw error;
      }
    }
    writer.finish();
    given = Optional.of(root.slice(0, writer.rows()));
    return FlatColumn.batch(given.get());
  }

  @Override
  public void close() {
    given.ifPresent(VectorSchemaRoot::close);
    root.close();
  }
}
