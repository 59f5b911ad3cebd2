package io.shmring.spark.columns;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.execution.datasources.parquet.ParquetDictionary;
import org.apache.spark.sql.execution.vectorized.Dictionary;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Decodes numbers in the batches of Spark's Parquet reader, column by column, before generated code
 * reads the batches row by row. Without this, Spark looks up each value in the column's dictionary
 * when the code reads the value; the JVM does not inline the lookup into a stage's large method, so
 * it takes five times as long. If the code reads the values of few rows, because a filter drops the
 * others, the columns keep their dictionaries.
 *
 * @param <T> batches of columns; rows for the compiler, because Spark's plans are typed so
 */
public final class DecodedBatches<T> implements Iterator<T> {
  /** Counts the rows of a batch that have passed a stage's filters. */
  public static final class Passed implements Serializable {
    private int rows;

    public void add() {
      rows++;
    }

    private int take() {
      int taken = rows;
      rows = 0;
      return taken;
    }
  }

  // A batch is decoded if, of the batch before it, at least one row in this number of rows has
  // passed the filters.
  private static final int FEWEST = 5;

  // Stands for the dictionary of a decoded column until the reader fills the column again: the
  // reader asks whether the column had a dictionary, and then sets another one or none.
  private static final Dictionary TAKEN = new ParquetDictionary(null, false);

  private final Iterator<T> batches;
  private final Passed passed;
  private final List<WritableColumnVector> decoded = new ArrayList<>();
  private int rows; // rows of the present batch

  /**
   * @param batches batches whose columns are valid until the next one is asked for
   * @param passed counter of the rows of these batches, to which the stage's code adds
   */
  public DecodedBatches(Iterator<T> batches, Passed passed) {
    this.batches = batches;
    this.passed = passed;
  }

  @Override
  public boolean hasNext() {
    decoded.forEach(column -> column.setDictionary(TAKEN));
    decoded.clear();
    return batches.hasNext();
  }

  @Override
  public T next() {
    T next = batches.next();
    if (next instanceof ColumnarBatch batch) {
      boolean pays = (long) FEWEST * passed.take() >= rows;
      rows = batch.numRows();
      for (int i = 0; pays && i < batch.numCols(); i++) {
        if (batch.column(i) instanceof WritableColumnVector column && column.hasDictionary()) {
          decode(column);
        }
      }
    }
    return next;
  }

  // CHANGE: edit this for a new type between Spark and Arrow
  private void decode(WritableColumnVector column) {
    DataType type = column.dataType();
    if (type instanceof DoubleType) {
      column.putDoubles(0, rows, column.getDoubles(0, rows), 0);
    } else if (type instanceof FloatType) {
      column.putFloats(0, rows, column.getFloats(0, rows), 0);
    } else if (type instanceof IntegerType
        || type instanceof DateType
        || DecimalType.is32BitDecimalType(type)) {
      column.putInts(0, rows, column.getInts(0, rows), 0);
    } else if (type instanceof LongType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || DecimalType.is64BitDecimalType(type)) {
      column.putLongs(0, rows, column.getLongs(0, rows), 0);
    } else {
      return; // texts have no array of values, and few columns have other types
    }
    column.setDictionary(null);
    decoded.add(column);
  }
}
