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

/** Writes rows, or rows of columnar batches, into vectors. */
public final class RootWriter {
  private static final int FIRST_ROWS = 1024;

  /**
   * Maximum number of rows in a batch. A capacity that is too small is doubled, and an int cannot
   * hold twice this number.
   */
  public static final int MOST_ROWS = 1 << 30;

  private final VectorSchemaRoot root;
  private final Cells[] columns;
  // Numbers of the columns whose bytes are added up and compared with wholeBytes.
  private final List<Integer> counted;
  private final long wholeBytes;
  private final boolean isStruct;
  // List vector with one value, whose elements are the rows that are written; empty if the rows
  // are written as rows of the vectors.
  private final Optional<ListVector> list;
  private int capacity;
  private int rows;
  // Bytes of the rows written, about as many as in Spark's own row format, plus the bytes of the
  // input rows that are retained until their answers come.
  private long bytes;
  private long mostBytes = Long.MAX_VALUE;
  private int limited; // number of rows written when the limit was set

  public RootWriter(VectorSchemaRoot root) {
    this(root, all(root), Long.MAX_VALUE, false, Optional.empty());
  }

  /**
   * @param counted numbers of the columns that Spark's own batch also has: only the bytes of these
   *     columns are compared with `wholeBytes`
   * @param wholeBytes bytes of the vectors at which Spark would end its own batch
   * @param isStruct whether all columns are the fields of one struct in Spark's own batch
   * @param like a writer of the same columns: the new writer begins with the same capacity, because
   *     the rows are copied each time a capacity is doubled
   */
  public RootWriter(
      VectorSchemaRoot root,
      List<Integer> counted,
      long wholeBytes,
      boolean isStruct,
      Optional<RootWriter> like) {
    this(root, counted, wholeBytes, isStruct, Optional.empty(), like);
  }

  /** Makes a writer into a list of structs: the list gets one value, and each row is an element. */
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
    if (FlatColumn.isFlat(vector.getMinorType())) {
      return FlatCells.of(vector, column, capacity, room);
    }
    return ArrayCells.take(vector)
        ? new ArrayCells((ListVector) vector, column, capacity, room)
        : new SparkCells(vector, column);
  }

  public int rows() {
    return rows;
  }

  /** Returns the bytes of the rows written, as the callers counted them. */
  public long bytes() {
    return bytes;
  }

  /** Limits the bytes of the rows that follow. */
  public void limit(long moreBytes) {
    mostBytes = bytes + moreBytes;
    limited = rows;
  }

  /**
   * Returns whether a row of `rowBytes` may be written within the limit. The first row after
   * limit() may have any size.
   */
  public boolean hasRoom(long rowBytes) {
    return rows == limited || rowBytes <= room();
  }

  /** Returns the bytes of rows that may still be written within the limit. */
  public long room() {
    return mostBytes - bytes;
  }

  Cells cells(int column) {
    return columns[column];
  }

  /** Counts a row whose cells have been written. */
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

  /** Writes some rows of a batch that has the same columns. */
  public void copy(ColumnarBatch batch, int from, int count, long rowBytes) {
    makeRoom(count);
    for (int i = 0; i < columns.length; i++) {
      columns[i].copy(batch, from, count, rows);
    }
    rows += count;
    bytes += rowBytes;
  }

  /**
   * Makes room for `count` more rows. Returns whether the cells may have moved to other addresses.
   */
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

  /** Completes the vectors as a batch of the rows written. */
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

  /**
   * Returns whether the batch is whole: Spark would end its own batch after the row written last,
   * because the vectors have `wholeBytes`. Spark, too, counts their bytes after each row.
   */
  public boolean isWhole() {
    return wholeBytes < Long.MAX_VALUE && mayBeWhole(0) && vectorBytes() >= wholeBytes;
  }

  /** Returns the bytes of the rows in the counted columns' vectors, as Spark counts them. */
  public long vectorBytes() {
    long vectorBytes = isStruct ? (rows + 7) / 8 : 0; // validity bits of the struct
    for (int place : counted) {
      vectorBytes += columns[place].bytes(rows);
    }
    return vectorBytes;
  }

  /**
   * Returns false if the batch cannot be whole (see {@link #isWhole}) after `more` bytes of rows. A
   * row is taken to have at most three times as many bytes in vectors as in Spark's row format: a
   * small decimal has 8 bytes in a row, and 16 and a validity bit in a vector.
   */
  public boolean mayBeWhole(long more) {
    return 3 * (bytes + more) >= wholeBytes - 64L * (columns.length + 1);
  }

  /**
   * Begins the next batch, in the same memory.
   *
   * @param mostBytes maximum bytes of the batch's rows; the first row may have more
   */
  public void reset(long mostBytes) {
    rows = 0;
    bytes = 0;
    limit(mostBytes);
    for (Cells column : columns) {
      column.reset();
    }
  }

  /** One column of a batch that is being written. The caller makes room before it writes a row. */
  interface Cells {
    /**
     * @param at number of the row in this batch: one more than in the last call
     */
    void write(InternalRow row, int at);

    /** Writes this column's values of some rows of a columnar batch. */
    default void copy(ColumnarBatch batch, int from, int count, int at) {
      for (int i = 0; i < count; i++) {
        write(batch.getRow(from + i), at + i);
      }
    }

    /** Makes room for `rows` rows in all. */
    void grow(int rows);

    /**
     * Returns the allocated room for variable data: bytes of texts, or elements of arrays; 0 if
     * each row has one value of fixed size.
     */
    default long room() {
      return 0;
    }

    /**
     * Returns the bytes of `rows` rows in the vector's buffers, as Spark counts them: as an int,
     * which overflows if a single row adds nearly 2 GiB.
     */
    long bytes(int rows);

    /** Completes the vector's values; the caller sets their number afterwards. */
    void finish(int rows);

    void reset();
  }

  /**
   * Writes a column whose type neither FlatCells nor ArrayCells takes. Spark's own writer writes
   * the values, one by one, with Arrow's checks.
   */
  static final class SparkCells implements RootWriter.Cells {
    private final ArrowFieldWriter writer;
    private final int column;

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
      // Ask Spark's writer, not the vector. If the last rows are null, their offsets are not set
      // yet. The writer sets these offsets first; the vector alone would return a wrong size.
      return writer.getSizeInBytes();
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
