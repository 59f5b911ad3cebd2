package io.shmring.spark.columns;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;

/**
 * Receives rows from generated code, cell by cell: {@link #begin}, each cell, {@link #end}. The
 * iterator over the generated code returns this sink instead of rows: once before the first row, so
 * that the caller of the iterator has the sink, and then each time {@link #end} returns true. The
 * sink extends a class of rows because the iterator's elements must be rows, and because Spark's
 * writer takes a cell from a row.
 *
 * <p>If the code reads rows of columnar batches, and passes some columns on unchanged, the sink
 * copies these columns itself, many rows at a time. For this, the code calls {@link #advance} for
 * each batch and {@link #read} for each row. The code then reads only the values that it computes
 * with, and each column's dictionary and nulls are looked at once for a batch, not for each row.
 */
public final class RowSink extends GenericInternalRow {
  // Maximum number of rows whose columns are copied together: the rows in a batch of Spark's file
  // readers.
  private static final int MOST_SELECTED = 4096;

  // Writer of each column; null if Spark's writer takes the column.
  private final transient FlatCells[] flat;
  private final transient long[] values;
  // Writers that take no more rows, oldest first.
  private final transient Queue<RootWriter> full = new ArrayDeque<>();
  private final transient int[] copied; // numbers of the copied columns
  // Number of each column in the batches that the code reads; -1 if the column is not copied.
  private final transient int[] sources;
  // Numbers of the batch's rows from which columns are still to be copied.
  private final transient int[] selected;
  private transient ColumnarBatch batch; // the batch that the code reads; null if there is none
  private int read; // row of the batch that the code reads
  // Number of rows in `selected`: the last rows of the present writer, which lack copied columns.
  private int pending;
  private transient Supplier<RootWriter> next;
  private transient RootWriter writer; // takes the present rows; null until a row begins
  private int row;
  private long rowBytes; // bytes of the present row
  private int batchRows; // maximum number of rows of one batch
  private int enough; // number of rows after which end() tells the code to stop
  private int mostRows; // maximum number of rows of the present writer
  private boolean whole; // whether Spark would end its own batch after the row written last

  /**
   * @param sources for each column its number in the batches that the code reads; -1 if the code
   *     writes the column's cells
   */
  public RowSink(int[] sources) {
    super(new Object[sources.length]);
    this.copied = IntStream.range(0, sources.length).filter(i -> sources[i] >= 0).toArray();
    this.sources = sources;
    this.selected = new int[copied.length == 0 ? 0 : MOST_SELECTED];
    this.flat = new FlatCells[sources.length];
    this.values = new long[sources.length];
  }

  /**
   * @param next a supplier of empty writers, called whenever one is needed
   * @param batchRows maximum number of rows of a batch; a batch may end earlier because of its
   *     bytes
   */
  public void writeTo(Supplier<RootWriter> next, int batchRows) {
    this.next = next;
    this.batchRows = batchRows;
    this.mostRows = batchRows;
  }

  /** Returns the number of rows in the oldest writer that {@link #cut} has not dropped. */
  public int rows() {
    RootWriter oldest = full.isEmpty() ? writer : full.element();
    return oldest == null ? 0 : oldest.rows();
  }

  /**
   * Returns whether the oldest writer, whose rows {@link #rows} counts, takes no more rows: a later
   * row has gone to another writer.
   */
  public boolean isFull() {
    return !full.isEmpty();
  }

  /** Drops the oldest writer, whose rows the caller has taken; later rows go to another writer. */
  public void cut() {
    if (full.poll() == null) {
      writer = null;
      whole = false;
    }
  }

  /**
   * Lets {@link #end} return true when the oldest writer has `enough` rows, or is full. The code
   * may still go on for a while, for example if a row of a join has many partners, and fill several
   * writers.
   *
   * @param mostRows maximum number of rows of the present writer, which may be the rows of several
   *     batches; each later writer takes the rows of one batch
   */
  public void limit(int enough, int mostRows) {
    this.enough = enough;
    this.mostRows = full.isEmpty() ? mostRows : batchRows;
  }

  /**
   * Returns the next batch for the code to read, which is valid until the next call; null after the
   * last batch.
   */
  public ColumnarBatch advance(Iterator<?> batches, SQLMetric batchCount, SQLMetric rowCount) {
    copySelected();
    if (batch != null) {
      batch.closeIfFreeable();
    }
    batch = batches.hasNext() ? (ColumnarBatch) batches.next() : null;
    if (batch != null) {
      batchCount.add(1);
      rowCount.add(batch.numRows());
    }
    return batch;
  }

  /** Notes which row of the batch the code reads; the rows written next are made from that row. */
  public void read(int row) {
    read = row;
  }

  /**
   * Copies the columns that the code has passed on, for the rows since the last call. The sink calls
   * this before the code reads another batch; the code's caller calls it whenever the code stops.
   */
  public void copySelected() {
    for (int i = 0; pending > 0 && i < copied.length; i++) {
      flat[copied[i]].copy(
          batch.column(sources[copied[i]]), selected, pending, writer.rows() - pending);
    }
    pending = 0;
  }

  /** Begins a row of `rowBytes` bytes. Returns its number in the writer. */
  public int begin(long rowBytes) {
    if (writer == null || whole || writer.rows() >= mostRows || !writer.hasRoom(rowBytes)) {
      turn();
    }
    if (writer.makeRoom(1)) {
      locate();
    }
    this.rowBytes = rowBytes;
    row = writer.rows();
    return row;
  }

  private void turn() {
    if (writer != null) {
      copySelected();
      full.add(writer);
      mostRows = batchRows;
    }
    whole = false;
    writer = next.get();
    for (int i = 0; i < flat.length; i++) {
      flat[i] = writer.cells(i) instanceof FlatCells cells ? cells : null;
    }
    locate();
  }

  private void locate() {
    for (int i = 0; i < flat.length; i++) {
      values[i] = flat[i] == null ? 0 : flat[i].values();
    }
  }

  /** Returns the address of a column's first value, if the column's values have a fixed size. */
  public long values(int column) {
    return values[column];
  }

  public void putNull(int column) {
    FlatCells cells = flat[column];
    if (cells == null) {
      put(column, null);
    } else {
      cells.setNull(row);
      cells.skip(row);
    }
  }

  /**
   * Writes a text: by FlatCells, or by Spark's writer if the column has 64-bit offsets
   * (useLargeVarTypes was set when the query ran).
   */
  public void putBytes(int column, UTF8String text) {
    if (flat[column] == null) {
      put(column, text);
    } else {
      flat[column].put(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), row);
    }
  }

  /** Writes a binary, as {@link #putBytes(int, UTF8String)} writes a text. */
  public void putBytes(int column, byte[] bytes) {
    if (flat[column] == null) {
      put(column, bytes);
    } else {
      flat[column].put(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, row);
    }
  }

  /**
   * Writes a value with Spark's writer; for types that no other method takes.
   *
   * @param value the value in the form in which Spark's rows contain it
   */
  public void put(int column, Object value) {
    update(column, value);
    writer.cells(column).write(this, row);
  }

  /** Ends the row. Returns whether the code should stop because there are enough rows. */
  public boolean end() {
    writer.added(rowBytes);
    whole = writer.isWhole();
    if (selected.length > 0) {
      selected[pending] = read;
      pending++;
      if (pending == selected.length) {
        copySelected();
      }
    }
    return isEnough();
  }

  public boolean isEnough() {
    return isFull() || whole || writer != null && writer.rows() >= enough;
  }
}
