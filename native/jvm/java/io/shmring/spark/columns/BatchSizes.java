package io.shmring.spark.columns;

import java.util.Arrays;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Measures the bytes of each row of a columnar batch: about as many as Spark's own rows would have.
 */
public final class BatchSizes {
  private static final int CELL_BYTES = 8;

  // ends[i] is the number of bytes of all rows before row i, so row i has ends[i + 1] - ends[i].
  private long[] ends = new long[1];
  private int rows;

  // CHANGE: edit this for a new type between Spark and Arrow
  /**
   * Returns whether all columns of a batch with these types can be measured; nested columns cannot.
   */
  public static boolean areKnown(StructType struct) {
    for (StructField field : struct.fields()) {
      DataType type = field.dataType();
      if (type instanceof StructType || type instanceof ArrayType || type instanceof MapType) {
        return false;
      }
    }
    return true;
  }

  public void measure(ColumnarBatch batch) {
    rows = batch.numRows();
    if (ends.length <= rows) {
      ends = new long[rows + 1];
    }
    Arrays.fill(ends, 1, rows + 1, (long) CELL_BYTES * batch.numCols());
    for (int i = 0; i < batch.numCols(); i++) {
      ColumnVector column = batch.column(i);
      if (column.dataType() instanceof StringType || column.dataType() instanceof BinaryType) {
        add(column);
      }
    }
    for (int row = 0; row < rows; row++) {
      ends[row + 1] += ends[row];
    }
  }

  private void add(ColumnVector column) {
    boolean some = column.hasNull();
    for (int row = 0; row < rows; row++) {
      if (!some || !column.isNullAt(row)) {
        ends[row + 1] += length(column, row);
      }
    }
  }

  private static int length(ColumnVector column, int row) {
    if (column instanceof FlatColumn flat) {
      return flat.offset(row + 1) - flat.offset(row);
    }
    if (column instanceof WritableColumnVector writable && !writable.hasDictionary()) {
      return writable.getArrayLength(row);
    }
    return column.dataType() instanceof StringType
        ? column.getUTF8String(row).numBytes()
        : column.getBinary(row).length;
  }

  /** Returns the number of rows from row `from` on that have at most `mostBytes` together. */
  public int fitting(int from, int mostRows, long mostBytes) {
    int most = Math.min(mostRows, rows - from);
    if (bytes(from, most) <= mostBytes) {
      return most;
    }
    int found = Arrays.binarySearch(ends, from, from + most + 1, ends[from] + mostBytes);
    return Math.max(0, (found >= 0 ? found : -found - 2) - from);
  }

  public long bytes(int from, int count) {
    return ends[from + count] - ends[from];
  }
}
