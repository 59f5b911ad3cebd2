package io.shmring.spark.columns;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Receives rows from generated code, cell by cell: {@link #begin}, each cell, {@link #end}. The
 * code returns this object as its first row, so that the reader of the rows finds the sink, and
 * again each time {@link #end} returns true. The values of this object as a row serve only to pass
 * cells to Spark's writer.
 */
public final class RowSink extends GenericInternalRow {
  // Writer of each column; null if Spark's writer takes the column.
  private final transient FlatCells[] flat;
  private final transient long[] values;
  // Writers that take no more rows, oldest first.
  private final transient Queue<RootWriter> full = new ArrayDeque<>();
  private final transient DecodedBatches.Passed passed;
  private transient Supplier<RootWriter> next;
  private transient RootWriter writer; // the writer of the present rows; null before its first row
  private int row;
  private long rowBytes; // bytes of the present row
  private int batchRows; // most rows of one batch
  private int enough; // number of rows after which end() tells the code to stop
  private int mostRows; // most rows of the present writer
  private boolean whole; // whether Spark would end the batch of the present writer here

  /**
   * @param passed counter of the rows written
   */
  public RowSink(int columns, DecodedBatches.Passed passed) {
    super(new Object[columns]);
    this.passed = passed;
    this.flat = new FlatCells[columns];
    this.values = new long[columns];
  }

  /**
   * @param next a supplier of empty writers, called whenever one is needed
   * @param batchRows most rows of a batch; its bytes may end it before
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
   * Returns whether the writer of {@link #rows} takes no more rows, because the next row did not
   * fit.
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
   * @param mostRows most rows of the present writer, a number of whole batches; later writers have
   *     one batch each
   */
  public void limit(int enough, int mostRows) {
    this.enough = enough;
    this.mostRows = full.isEmpty() ? mostRows : batchRows;
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

  /** Returns the address of the column's first number. */
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
   * Writes a text. Spark's writer takes texts with 64-bit offsets (if useLargeVarTypes was set when
   * the query ran).
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

  /** Writes a value of any other type, given as a row holds it. */
  public void put(int column, Object value) {
    update(column, value);
    writer.cells(column).write(this, row);
  }

  /** Ends the row. Returns whether the code should stop because there are enough rows. */
  public boolean end() {
    writer.added(rowBytes);
    passed.add();
    whole = writer.isWhole();
    return isEnough();
  }

  public boolean isEnough() {
    return isFull() || whole || writer != null && writer.rows() >= enough;
  }
}
