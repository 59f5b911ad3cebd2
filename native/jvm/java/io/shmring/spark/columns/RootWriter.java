package io.shmring.spark.columns;

import io.shmring.RingException;
import io.shmring.Status;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowFieldWriter;
import org.apache.spark.sql.execution.arrow.ArrowWriter$;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Puts rows, or columns of other batches, into vectors. */
public final class RootWriter {
  private static final int FIRST_ROWS = 1024;

  /** The most rows of a batch: the next power of two is not an int. */
  public static final int MOST_ROWS = 1 << 30;

  private final VectorSchemaRoot root;
  private final Cells[] columns;
  private final List<Integer> counted; // columns whose bytes make a batch whole
  private final long wholeBytes;
  private final boolean isStruct;
  private final Optional<ListVector> list; // whose only value has the rows as its elements
  private int capacity;
  private int rows;
  private long bytes; // of these in Spark's own format, or nearly, with what is kept of them
  private long mostBytes = Long.MAX_VALUE;
  private int limited; // rows when that was set

  public RootWriter(VectorSchemaRoot root) {
    this(root, Optional.empty());
  }

  /**
   * @param like has the same columns: memory for as much is made at once
   */
  public RootWriter(VectorSchemaRoot root, Optional<RootWriter> like) {
    this(root, all(root), Long.MAX_VALUE, false, like);
  }

  /**
   * @param counted places of the columns that Spark's own batch has
   * @param wholeBytes of vectors, with which a batch of Spark's own is whole
   * @param isStruct whether all columns are the fields of one there
   * @param like has the same columns: memory for as much as its own is made at once, as what is
   *     doubled again and again is written, and paid for, twice
   */
  public RootWriter(
      VectorSchemaRoot root,
      List<Integer> counted,
      long wholeBytes,
      boolean isStruct,
      Optional<RootWriter> like) {
    this(root, counted, wholeBytes, isStruct, Optional.empty(), like);
  }

  /** Writes the elements of the only value of a list, which are structs. */
  public RootWriter(ListVector list, Optional<RootWriter> like) {
    this(new VectorSchemaRoot(list.getDataVector().getChildrenFromFields()), list, like);
  }

  private RootWriter(VectorSchemaRoot root, ListVector list, Optional<RootWriter> like) {
    this(root, all(root), Long.MAX_VALUE, false, Optional.of(list), like);
  }

  private static List<Integer> all(VectorSchemaRoot root) {
    return IntStream.range(0, root.getFieldVectors().size()).boxed().toList();
  }

  private RootWriter(
      VectorSchemaRoot root,
      List<Integer> counted,
      long wholeBytes,
      boolean isStruct,
      Optional<ListVector> list,
      Optional<RootWriter> like) {
    this.root = root;
    this.counted = counted;
    this.capacity = like.map(other -> other.capacity).orElse(FIRST_ROWS);
    this.wholeBytes = wholeBytes;
    this.isStruct = isStruct;
    this.list = list;
    List<FieldVector> vectors = root.getFieldVectors();
    this.columns = new Cells[vectors.size()];
    for (int i = 0; i < columns.length; i++) {
      int column = i;
      FieldVector vector = vectors.get(i);
      columns[i] = cells(vector, i, like.map(other -> other.columns[column].room()).orElse(0L));
    }
  }

  private Cells cells(FieldVector vector, int column, long room) {
    if (FlatColumn.isFlat(vector)) {
      return FlatCells.of(vector, column, capacity, room);
    }
    return ArrayCells.take(vector)
        ? new ArrayCells((ListVector) vector, column, capacity, room)
        : new SparkCells(vector, column);
  }

  /** The number of rows. */
  public int rows() {
    return rows;
  }

  /** Bytes of the rows, as those who wrote them said. */
  public long bytes() {
    return bytes;
  }

  /** Lets so many bytes of rows follow. */
  public void limit(long moreBytes) {
    mostBytes = bytes + moreBytes;
    limited = rows;
  }

  /** Whether a row of so many bytes may be written: the first one since the limit may in any case. */
  public boolean hasRoom(long rowBytes) {
    return rows == limited || rowBytes <= room();
  }

  /** Bytes of rows that may be written yet, save for the first one. */
  public long room() {
    return mostBytes - bytes;
  }

  Cells cells(int column) {
    return columns[column];
  }

  /** One more, whose cells are written. */
  void added(long rowBytes) {
    rows++;
    bytes += rowBytes;
  }

  public void write(InternalRow row, long rowBytes) {
    makeRoom(1);
    for (Cells column : columns) {
      column.write(row, rows);
    }
    added(rowBytes);
  }

  /** Writes some rows of a batch that has these columns. */
  public void copy(ColumnarBatch batch, int from, int count, long rowBytes) {
    makeRoom(count);
    for (int i = 0; i < columns.length; i++) {
      columns[i].copy(batch, from, count, rows);
    }
    rows += count;
    bytes += rowBytes;
  }

  /** Whether the cells lie elsewhere now. */
  boolean makeRoom(int count) {
    if (count > capacity - rows) {
      if (count > MOST_ROWS - rows) {
        throw new RingException(
            Status.TOO_LARGE,
            "more than %d rows do not fit one batch, and a group is one: group by a column more",
            MOST_ROWS);
      }
      while (rows + count > capacity) {
        capacity *= 2;
      }
      for (Cells column : columns) {
        column.grow(capacity);
      }
      return true;
    }
    return false;
  }

  /** Makes a batch of the rows that were written. */
  public void finish() {
    for (Cells column : columns) {
      column.finish(rows);
    }
    root.setRowCount(rows);
    list.ifPresent(this::finish);
  }

  private void finish(ListVector list) {
    StructVector structs = (StructVector) list.getDataVector();
    for (int i = 0; i < rows; i++) {
      structs.setIndexDefined(i);
    }
    list.startNewValue(0);
    list.endValue(0, rows);
  }

  /** Whether Spark would write no further row: it looks at the bytes of its vectors after each. */
  public boolean isWhole() {
    return wholeBytes < Long.MAX_VALUE && mayBeWhole(0) && vectorBytes() >= wholeBytes;
  }

  /** Bytes of the rows in the counted columns' vectors, as Spark counts them. */
  public long vectorBytes() {
    long vectorBytes = isStruct ? (rows + 7) / 8 : 0; // which of the structs are null
    for (int place : counted) {
      vectorBytes += columns[place].bytes(rows);
    }
    return vectorBytes;
  }

  /** Whether it may be with so many bytes more: none takes three times as much in a vector as in a row. */
  public boolean mayBeWhole(long more) {
    return 3 * (bytes + more) >= wholeBytes - 64L * (columns.length + 1);
  }

  /**
   * Begins the next batch, in the same memory.
   *
   * @param mostBytes of its rows, unless its first one has more
   */
  public void reset(long mostBytes) {
    rows = 0;
    bytes = 0;
    limit(mostBytes);
    for (Cells column : columns) {
      column.reset();
    }
  }

  /** One column of a batch that is being made. A row may be written after room was made for it. */
  interface Cells {
    /**
     * @param at the row's number here: one more than the last
     */
    void write(InternalRow row, int at);

    /** Changes to the same column of another batch. */
    default void copy(ColumnarBatch batch, int from, int count, int at) {
      for (int i = 0; i < count; i++) {
        write(batch.getRow(from + i), at + i);
      }
    }

    /** Makes room for so many rows. */
    void grow(int rows);

    /** How much there is room for besides a value a row: bytes of texts, or elements of arrays. */
    default long room() {
      return 0;
    }

    /** Of so many rows, in the vector's buffers, as Spark counts them. */
    long bytes(int rows);

    /** Completes the vector's values; the caller sets their number afterwards. */
    void finish(int rows);

    void reset();
  }

  /** Spark's own writer, for all other types: it writes value by value with Arrow's checks. */
  static final class SparkCells implements RootWriter.Cells {
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
    public void grow(int rows) {} // Spark's writer makes room itself

    @Override
    public long bytes(int rows) {
      return writer.getSizeInBytes(); // it fills the offsets of nulls first
    }

    @Override
    public void finish(int rows) {
      writer.finish();
    }

    @Override
    public void reset() {
      writer.reset();
    }
  }
}
