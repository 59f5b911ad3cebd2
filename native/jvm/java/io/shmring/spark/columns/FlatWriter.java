package io.shmring.spark.columns;

import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;

/** Puts rows into vectors whose types are all flat, by addresses. */
final class FlatWriter implements RootWriter {
  private static final int FIRST_ROWS = 1024;

  private final VectorSchemaRoot root;
  private final FlatCells[] columns;
  private int capacity;
  private int rows;

  FlatWriter(VectorSchemaRoot root) {
    this.root = root;
    this.columns = new FlatCells[root.getFieldVectors().size()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = FlatCells.of(root.getVector(i), i, FIRST_ROWS);
    }
    this.capacity = FIRST_ROWS;
  }

  static boolean fits(VectorSchemaRoot root) {
    return root.getFieldVectors().stream().allMatch(FlatTypes::has);
  }

  @Override
  public void write(InternalRow row) {
    if (rows == capacity) {
      capacity *= 2;
      for (FlatCells column : columns) {
        column.grow(capacity);
      }
    }
    for (FlatCells column : columns) {
      column.write(row, rows);
    }
    rows++;
  }

  @Override
  public void finish() {
    for (FlatCells column : columns) {
      column.finish(rows);
    }
    root.setRowCount(rows);
  }

  @Override
  public void reset() {
    rows = 0;
    for (FlatCells column : columns) {
      column.reset();
    }
  }
}
