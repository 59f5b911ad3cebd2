package io.shmring.spark.columns;

import org.apache.arrow.vector.FieldVector;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Spark's own writer, for every type: it writes value by value with Arrow's checks. */
final class SparkCells implements Cells {
  private final ArrowFieldWriter writer;
  private final int column;

  /**
   * @param column of the rows
   */
  SparkCells(FieldVector vector, int column) {
    vector.allocateNew();
    this.writer = ArrowWriter$.MODULE$.createFieldWriter(vector);
    this.column = column;
  }

  @Override
  public void write(InternalRow row, int at) {
    writer.write(row, column);
  }

  @Override
  public void copy(ColumnarBatch batch, int from, int count, int at) {
    for (int i = from; i < from + count; i++) {
      writer.write(batch.getRow(i), column);
    }
  }

  @Override
  public void grow(int rows) {} // Spark's writer makes room itself

  @Override
  public void finish(int rows) {
    writer.finish();
  }

  @Override
  public void reset() {
    writer.reset();
  }
}
