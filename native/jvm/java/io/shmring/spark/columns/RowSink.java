package io.shmring.spark.columns;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;

/**
 * Where generated code writes rows, cell by cell: {@link #begin}, each cell, {@link #end}. The code
 * gives it out as its first row, so that whoever asks for rows knows where they go, and again
 * whenever {@link #end} says so. Its own values are those of columns that Spark's writer takes.
 */
public final class RowSink extends GenericInternalRow {
  private final transient FlatCells[] flat; // null: Spark's writer takes the column
  private final transient long[] values;
  private final transient Queue<Written> full = new ArrayDeque<>(); // oldest first
  private transient Supplier<RootWriter> next;
  private transient RootWriter writer; // null before its first row
  private int row;
  private int batchRows; // of a batch that is whole
  private int enough; // rows, after which the code is to stop
  private int mostRows; // of the writer
  private long mostBytes;
  private long bytes; // of the writer's rows
  private boolean whole; // the writer's batch

  private record Written(RootWriter writer, long bytes) {}

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

  /** Where the oldest rows went that were not cut off; null if there are none. */
  public RootWriter writer() {
    return full.isEmpty() ? writer : full.element().writer();
  }

  /** Of the rows of {@link #writer}. */
  public long bytes() {
    return full.isEmpty() ? bytes : full.element().bytes();
  }

  /** Whether {@link #writer} takes no more rows, as the next one did not fit. */
  public boolean isFull() {
    return !full.isEmpty();
  }

  /** What was written to {@link #writer} is taken; what follows goes to another one. */
  public void cut() {
    if (full.poll() == null) {
      writer = null;
      bytes = 0;
      whole = false;
    }
  }

  /**
   * Lets {@link #end} say so when {@link #writer} has enough rows, or is full. The code may go on for a
   * while, as where a row of a join has many partners, and fill several.
   *
   * @param mostRows of {@link #writer}, a number of whole batches; those after it have one batch each
   * @param mostBytes of a writer's rows, unless its first one has more
   */
  public void limit(int enough, int mostRows, long mostBytes) {
    this.enough = enough;
    this.mostRows = full.isEmpty() ? mostRows : batchRows;
    limit(mostBytes);
  }

  /** The same of the bytes alone. */
  public void limit(long mostBytes) {
    this.mostBytes = mostBytes;
  }

  /** The number of the next row, which has so many bytes. */
  public int begin(long rowBytes) {
    if (writer == null
        || whole
        || writer.rows() >= mostRows
        || bytes + rowBytes > mostBytes && writer.rows() > 0) {
      turn();
    }
    if (writer.makeRoom(1)) {
      locate();
    }
    bytes += rowBytes;
    row = writer.rows();
    return row;
  }

  private void turn() {
    if (writer != null) {
      full.add(new Written(writer, bytes));
      mostRows = batchRows;
    }
    bytes = 0;
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

  /** A text or binary. */
  public void put(int column, Object base, long offset, int length) {
    flat[column].put(base, offset, length, row);
  }

  /** A value of another type, as a row has it. */
  public void put(int column, Object value) {
    update(column, value);
    writer.cells(column).write(this, row);
  }

  /** Ends the row; whether there are as many as were wanted. */
  public boolean end() {
    writer.added();
    whole = writer.isWhole(bytes);
    return isEnough();
  }

  public boolean isEnough() {
    return isFull() || whole || writer != null && writer.rows() >= enough;
  }
}
