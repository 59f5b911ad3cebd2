package io.shmring.spark.columns;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where generated code writes rows, cell by cell: {@link #begin}, each cell, {@link #end}. The code
 * gives it out as its first row, so that whoever asks for rows knows where they go, and again
 * whenever {@link #end} says so. Its own values are those of columns that Spark's writer takes.
 */
public final class RowSink extends GenericInternalRow {
  private final transient FlatCells[] flat; // null: Spark's writer takes the column
  private final transient long[] values;
  private final transient Queue<RootWriter> full = new ArrayDeque<>(); // oldest first
  private transient Supplier<RootWriter> next;
  private transient RootWriter writer; // null before its first row
  private int row;
  private long rowBytes; // of that
  private int batchRows; // of a batch that is whole
  private int enough; // rows, after which the code is to stop
  private int mostRows; // of the writer
  private boolean whole; // the writer's batch

  public RowSink(int columns) {
    super(new Object[columns]);
    this.flat = new FlatCells[columns];
    this.values = new long[columns];
  }

  /**
   * @param next gives an empty writer whenever one is needed
   * @param batchRows of a batch, unless its bytes end it before
   */
  public void writeTo(Supplier<RootWriter> next, int batchRows) {
    this.next = next;
    this.batchRows = batchRows;
    this.mostRows = batchRows;
  }

  /** The number of the oldest rows that were not cut off, which are in one writer. */
  public int rows() {
    RootWriter oldest = full.isEmpty() ? writer : full.element();
    return oldest == null ? 0 : oldest.rows();
  }

  /** Whether the writer of {@link #rows} takes no more, as the next one did not fit. */
  public boolean isFull() {
    return !full.isEmpty();
  }

  /** These rows are taken; what follows goes to another writer. */
  public void cut() {
    if (full.poll() == null) {
      writer = null;
      whole = false;
    }
  }

  /**
   * Lets {@link #end} say so when the oldest writer has enough rows, or is full. The code may go on for a
   * while, as where a row of a join has many partners, and fill several.
   *
   * @param mostRows of this writer, a number of whole batches; those after it have one batch each
   */
  public void limit(int enough, int mostRows) {
    this.enough = enough;
    this.mostRows = full.isEmpty() ? mostRows : batchRows;
  }

  /** The number of the next row, which has so many bytes. */
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

  /** Where the column's numbers lie, the first of them. */
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

  /** Writes a text; Spark's writer takes one of 64-bit offsets (useLargeVarTypes when the query runs). */
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

  /** A value of another type, as a row has it. */
  public void put(int column, Object value) {
    update(column, value);
    writer.cells(column).write(this, row);
  }

  /** Ends the row; whether there are as many as were wanted. */
  public boolean end() {
    writer.added(rowBytes);
    whole = writer.isWhole();
    return isEnough();
  }

  public boolean isEnough() {
    return isFull() || whole || writer != null && writer.rows() >= enough;
  }
}
