package io.shmring.spark.columns;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** One column of a batch that is being made. A row may be written after room was made for it. */
interface Cells {
  /**
   * @param at the row's number here: one more than the last
   */
  void write(InternalRow row, int at);

  /** Changes to the same column of another batch. */
  void copy(ColumnarBatch batch, int from, int count, int at);

  /** Makes room for so many rows. */
  void grow(int rows);

  /** Completes the vector's values; the caller sets their number afterwards. */
  void finish(int rows);

  void reset();
}
