package io.shmring.spark.columns;

import io.shmring.RingException;
import io.shmring.Status;
import java.util.List;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Puts rows, or columns of other batches, into vectors. */
public final class RootWriter {
  private static final int FIRST_ROWS = 1024;
  /** The most rows of a batch: the next power of two is not an int. */
  public static final int MOST_ROWS = 1 << 30;


  private final VectorSchemaRoot root;
  private final Cells[] columns;
  private int capacity = FIRST_ROWS;
  private int rows;

  public RootWriter(VectorSchemaRoot root) {
    this.root = root;
    List<FieldVector> vectors = root.getFieldVectors();
    this.columns = new Cells[vectors.size()];
    for (int i = 0; i < columns.length; i++) {
      FieldVector vector = vectors.get(i);
      columns[i] =
          FlatTypes.has(vector) ? FlatCells.of(vector, i, FIRST_ROWS) : new SparkCells(vector, i);
    }
  }

  /** The number of rows. */
  public int rows() {
    return rows;
  }

  Cells cells(int column) {
    return columns[column];
  }

  /** One more, whose cells are written. */
  void added() {
    rows++;
  }

  public void write(InternalRow row) {
    makeRoom(1);
    for (Cells column : columns) {
      column.write(row, rows);
    }
    rows++;
  }

  /** Writes some rows of a batch that has these columns. */
  public void copy(ColumnarBatch batch, int from, int count) {
    makeRoom(count);
    for (int i = 0; i < columns.length; i++) {
      columns[i].copy(batch, from, count, rows);
    }
    rows += count;
  }

  /** Whether the cells lie elsewhere now. */
  boolean makeRoom(int count) {
    if (count > capacity - rows) {
      if (count > MOST_ROWS - rows) {
        throw new RingException(
            Status.TOO_LARGE,
            String.format(
                "more than %d rows do not fit one batch, and a group is one: group by a column more",
                MOST_ROWS));
      }
      while (rows + count > capacity) {
        capacity *= 2;
      }
      for (Cells column : columns) {
        column.grow(capacity);
      }
      return true;
    }
    return false;
  }

  /** Makes a batch of the rows that were written. */
  public void finish() {
    for (Cells column : columns) {
      column.finish(rows);
    }
    root.setRowCount(rows);
  }

  /** Begins the next batch, in the same memory. */
  public void reset() {
    rows = 0;
    for (Cells column : columns) {
      column.reset();
    }
  }
}
