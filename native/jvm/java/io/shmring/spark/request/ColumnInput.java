package io.shmring.spark.request;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.RootWriter;
import java.util.Iterator;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Copies columns into batches of other sizes, without turning them into rows. */
final class ColumnInput extends Input {
  private final Iterator<ColumnarBatch> batches;
  private final BatchSizes sizes = new BatchSizes();
  private ColumnarBatch batch; // null before the first batch, and after the last one
  private int position;

  ColumnInput(Iterator<ColumnarBatch> batches) {
    this.batches = batches;
  }

  @Override
  boolean hasNext() {
    while (batch == null || position == batch.numRows()) {
      if (batch != null) {
        batch.closeIfFreeable();
        batch = null;
      }
      if (!batches.hasNext()) {
        return false;
      }
      batch = batches.next();
      position = 0;
      sizes.measure(batch);
    }
    return true;
  }

  @Override
  int fill(RootWriter writer, int mostRows) {
    int written = 0;
    while (written < mostRows && hasNext()) {
      int fitting = sizes.fitting(position, mostRows - written, writer.room());
      if (fitting == 0 && writer.rows() > 0) {
        break;
      }
      int count = Math.max(1, fitting); // a row that is too large is a batch of its own
      if (writer.mayBeWhole(sizes.bytes(position, count))) {
        count = 1;
      }
      writer.copy(batch, position, count, sizes.bytes(position, count));
      position += count;
      written += count;
      if (writer.isWhole()) {
        break;
      }
    }
    return written;
  }
}
