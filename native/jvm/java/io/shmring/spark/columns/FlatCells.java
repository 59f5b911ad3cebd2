package io.shmring.spark.columns;

import io.shmring.RingException;
import io.shmring.Status;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

// CHANGE: edit this for a new type between Spark and Arrow
/** Writes one column's cells directly to their addresses. */
abstract class FlatCells implements RootWriter.Cells {
  private final FieldVector vector;
  private final int column;
  private final Validity validity = new Validity();

  private FlatCells(FieldVector vector, int column) {
    this.vector = vector;
    this.column = column;
  }

  /**
   * @param column number of the column in the rows
   * @param room least number of bytes of texts or binaries that fit before the vector has to grow
   */
  static FlatCells of(FieldVector vector, int column, int rows, long room) {
    FlatCells cells =
        vector instanceof BaseVariableWidthVector bytes
            ? new Bytes(bytes, column)
            : new Numbers((BaseFixedWidthVector) vector, column);
    vector.setInitialCapacity(rows);
    vector.allocateNew();
    cells.grow(rows);
    cells.makeRoom(room);
    return cells;
  }

  @Override
  public final long bytes(int rows) {
    return vector.getBufferSizeFor(rows);
  }

  @Override
  public final void write(InternalRow row, int at) {
    write(row, column, at);
  }

  /** Writes a cell of a row, or an element of an array. */
  final void write(SpecializedGetters from, int place, int at) {
    boolean isNull = from.isNullAt(place);
    if (isNull) {
      setNull(at);
    }
    put(from, place, at, isNull);
  }

  @Override
  public final void copy(ColumnarBatch batch, int from, int count, int at) {
    ColumnVector source = batch.column(column);
    if (isCopiedByColumn(source)) {
      copy(source, from, count, at);
    } else {
      RootWriter.Cells.super.copy(batch, from, count, at);
    }
  }

  private void copy(ColumnVector source, int from, int count, int at) {
    boolean some = source.hasNull();
    for (int i = 0; some && i < count; i++) {
      if (source.isNullAt(from + i)) {
        setNull(at + i);
      }
    }
    put(source, from, count, at, some);
  }

  /**
   * Copies the numeric values in some rows of a source column.
   *
   * @param rows indices of the rows, in ascending order; an index may occur several times
   */
  final void copy(ColumnVector source, int[] rows, int count, int at) {
    if (isRun(rows, count)) {
      copy(source, rows[0], count, at);
      return;
    }
    boolean some = source.hasNull();
    for (int i = 0; some && i < count; i++) {
      if (source.isNullAt(rows[i])) {
        setNull(at + i);
      }
    }
    put(source, rows, count, at, some);
  }

  private static boolean isRun(int[] rows, int count) {
    int i = 1;
    while (i < count && rows[i] == rows[0] + i) {
      i++;
    }
    return i == count;
  }

  final void setNull(int at) {
    validity.setNull(at);
  }

  @Override
  public final void grow(int rows) {
    while (vector.getValueCapacity() < rows) {
      enlarge();
    }
    locate();
    validity.grow(vector.getValidityBufferAddress(), rows);
  }

  @Override
  public void reset() {
    validity.reset();
  }

  /** The validity bits of a vector: one for each value, set unless the value is null. */
  static final class Validity {
    private long bits;
    private int capacity;
    private boolean nulls;

    void setNull(int at) {
      long address = bits + (at >> 3);
      Platform.putByte(null, address, (byte) (Platform.getByte(null, address) & ~(1 << (at & 7))));
      nulls = true;
    }

    /**
     * @param bits the new address of the validity bits, with a copy of the bits written so far
     */
    void grow(long bits, int rows) {
      this.bits = bits;
      Platform.setMemory(null, bits + capacity / 8, (rows - capacity) / 8, (byte) 0xff);
      capacity = rows;
    }

    void reset() {
      if (nulls) {
        Platform.setMemory(null, bits, capacity / 8, (byte) 0xff);
        nulls = false;
      }
    }
  }

  /** Returns the address of the numbers; 0 for texts and binaries. */
  long values() {
    return 0;
  }

  /** Returns the size of a number in bytes; 0 for texts and binaries. */
  int width() {
    return 0;
  }

  /** Writes a text or binary. (The caller writes numbers by their address.) */
  void put(Object base, long offset, int length, int at) {
    throw new UnsupportedOperationException();
  }

  /** Writes the offset of a text or binary that is null. */
  void skip(int at) {}

  abstract void enlarge();

  /**
   * Makes room for `bytes` bytes of texts or binaries, so that they can be written without growing.
   */
  void makeRoom(long bytes) {}

  /** Reads the addresses of the vector's buffers again, because they may have moved. */
  abstract void locate();

  abstract void put(SpecializedGetters from, int place, int at, boolean isNull);

  /** Returns whether values are copied straight from a source column, not through its rows. */
  abstract boolean isCopiedByColumn(ColumnVector source);

  abstract void put(ColumnVector source, int from, int count, int at, boolean nulls);

  /** Writes numeric values of some rows of a source column. (Callers write texts one by one.) */
  void put(ColumnVector source, int[] rows, int count, int at, boolean nulls) {
    throw new UnsupportedOperationException();
  }

  @Override
  public void finish(int rows) {}

  /** Returns whether a column has a dictionary: its bytes are then not in the column. */
  private static boolean isEncoded(ColumnVector source) {
    return source instanceof WritableColumnVector writable && writable.hasDictionary();
  }

  private static final class Numbers extends FlatCells {
    // If at least one row in FEWEST is wanted, all rows from the first wanted one to the last are
    // read at once, in one short loop. If fewer are wanted, they are copied one by one.
    private static final int FEWEST = 5;

    private final BaseFixedWidthVector vector;
    private final MinorType type;
    private long values;

    Numbers(BaseFixedWidthVector vector, int column) {
      super(vector, column);
      this.vector = vector;
      this.type = vector.getMinorType();
    }

    @Override
    long values() {
      return values;
    }

    @Override
    int width() {
      return vector.getTypeWidth();
    }

    @Override
    void enlarge() {
      vector.reAlloc();
    }

    @Override
    void locate() {
      values = vector.getDataBufferAddress();
    }

    @Override
    void put(SpecializedGetters from, int place, int at, boolean isNull) {
      if (isNull) {
        return;
      }
      switch (type) {
        case TINYINT -> Platform.putByte(null, values + at, from.getByte(place));
        case SMALLINT -> Platform.putShort(null, values + 2L * at, from.getShort(place));
        case INT, DATEDAY -> Platform.putInt(null, values + 4L * at, from.getInt(place));
        case FLOAT4 -> Platform.putFloat(null, values + 4L * at, from.getFloat(place));
        case FLOAT8 -> Platform.putDouble(null, values + 8L * at, from.getDouble(place));
        case BIGINT, TIMESTAMPMICRO, TIMESTAMPMICROTZ ->
            Platform.putLong(null, values + 8L * at, from.getLong(place));
        default -> throw new AssertionError(type);
      }
    }

    @Override
    boolean isCopiedByColumn(ColumnVector source) {
      return true;
    }

    @Override
    void put(ColumnVector source, int from, int count, int at, boolean nulls) {
      if (nulls && !isReadAtOnce(source)) {
        for (int i = 0; i < count; i++) {
          copyOne(source, from + i, at + i);
        }
        return;
      }
      Run run = run(source, from, count);
      Platform.copyMemory(
          run.base, run.offset, null, values + (long) at * width(), (long) count * width());
    }

    @Override
    void put(ColumnVector source, int[] rows, int count, int at, boolean nulls) {
      int first = rows[0];
      int rowsBetween = rows[count - 1] - first + 1;
      if (nulls && !isReadAtOnce(source) || rowsBetween > FEWEST * (long) count) {
        for (int i = 0; i < count; i++) {
          copyOne(source, rows[i], at + i);
        }
        return;
      }
      Run run = run(source, first, rowsBetween);
      long start = run.offset - (long) first * width();
      switch (width()) {
        case Byte.BYTES -> {
          for (int i = 0; i < count; i++) {
            Platform.putByte(null, values + at + i, Platform.getByte(run.base, start + rows[i]));
          }
        }
        case Short.BYTES -> {
          for (int i = 0; i < count; i++) {
            short value = Platform.getShort(run.base, start + 2L * rows[i]);
            Platform.putShort(null, values + 2L * (at + i), value);
          }
        }
        case Integer.BYTES -> {
          for (int i = 0; i < count; i++) {
            int value = Platform.getInt(run.base, start + 4L * rows[i]);
            Platform.putInt(null, values + 4L * (at + i), value);
          }
        }
        default -> {
          for (int i = 0; i < count; i++) {
            long value = Platform.getLong(run.base, start + 8L * rows[i]);
            Platform.putLong(null, values + 8L * (at + i), value);
          }
        }
      }
    }

    /**
     * Returns whether consecutive rows of a column may be read in one go even if some are null: the
     * column then has memory for each null too, with an arbitrary value.
     */
    private static boolean isReadAtOnce(ColumnVector source) {
      return source instanceof WritableColumnVector || source instanceof FlatColumn;
    }

    /** Consecutive numbers of a column, decoded if the column has a dictionary. */
    private record Run(Object base, long offset) {}

    private Run run(ColumnVector source, int from, int count) {
      if (source instanceof FlatColumn flat) {
        return new Run(null, flat.values() + (long) from * width());
      }
      return switch (type) {
        case TINYINT -> new Run(source.getBytes(from, count), Platform.BYTE_ARRAY_OFFSET);
        case SMALLINT -> new Run(source.getShorts(from, count), Platform.SHORT_ARRAY_OFFSET);
        case INT, DATEDAY -> new Run(source.getInts(from, count), Platform.INT_ARRAY_OFFSET);
        case FLOAT4 -> new Run(source.getFloats(from, count), Platform.FLOAT_ARRAY_OFFSET);
        case FLOAT8 -> new Run(source.getDoubles(from, count), Platform.DOUBLE_ARRAY_OFFSET);
        case BIGINT, TIMESTAMPMICRO, TIMESTAMPMICROTZ ->
            new Run(source.getLongs(from, count), Platform.LONG_ARRAY_OFFSET);
        default -> throw new AssertionError(type);
      };
    }

    private void copyOne(ColumnVector source, int place, int at) {
      if (source.isNullAt(place)) {
        return;
      }
      switch (type) {
        case TINYINT -> Platform.putByte(null, values + at, source.getByte(place));
        case SMALLINT -> Platform.putShort(null, values + 2L * at, source.getShort(place));
        case INT, DATEDAY -> Platform.putInt(null, values + 4L * at, source.getInt(place));
        case FLOAT4 -> Platform.putFloat(null, values + 4L * at, source.getFloat(place));
        case FLOAT8 -> Platform.putDouble(null, values + 8L * at, source.getDouble(place));
        case BIGINT, TIMESTAMPMICRO, TIMESTAMPMICROTZ ->
            Platform.putLong(null, values + 8L * at, source.getLong(place));
        default -> throw new AssertionError(type);
      }
    }
  }

  private static final class Bytes extends FlatCells {
    private static final long MOST_BYTES = Integer.MAX_VALUE;

    private final BaseVariableWidthVector vector;
    private final boolean text;
    private long offsets;
    private long values;
    private long room;
    private int end;

    Bytes(BaseVariableWidthVector vector, int column) {
      super(vector, column);
      this.vector = vector;
      this.text = vector.getMinorType() == MinorType.VARCHAR;
    }

    @Override
    void put(Object base, long offset, int length, int at) {
      copy(base, offset, length);
      skip(at);
    }

    @Override
    void skip(int at) {
      Platform.putInt(null, offsets + 4L * (at + 1), end);
    }

    @Override
    void enlarge() {
      vector.reallocValidityAndOffsetBuffers();
    }

    @Override
    public long room() {
      return room;
    }

    @Override
    void makeRoom(long bytes) {
      if (bytes > room) {
        vector.reallocDataBuffer(bytes);
        locate();
      }
    }

    @Override
    void locate() {
      offsets = vector.getOffsetBufferAddress();
      values = vector.getDataBufferAddress();
      room = vector.getDataBuffer().capacity();
    }

    @Override
    void put(SpecializedGetters from, int place, int at, boolean isNull) {
      if (!isNull) {
        if (from instanceof UnsafeRow unsafe) {
          // Offset in the upper half and size in the lower half, as in UnsafeRow.getBinary.
          long where = unsafe.getLong(place);
          copy(unsafe.getBaseObject(), unsafe.getBaseOffset() + (where >>> 32), (int) where);
        } else if (text) {
          UTF8String string = from.getUTF8String(place);
          copy(string.getBaseObject(), string.getBaseOffset(), string.numBytes());
        } else {
          byte[] bytes = from.getBinary(place);
          copy(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
        }
      }
      Platform.putInt(null, offsets + 4L * (at + 1), end);
    }

    @Override
    boolean isCopiedByColumn(ColumnVector source) {
      return source instanceof FlatColumn
          || source instanceof WritableColumnVector && !isEncoded(source);
    }

    @Override
    void put(ColumnVector source, int from, int count, int at, boolean nulls) {
      if (source instanceof FlatColumn flat) {
        putRun(flat, from, count, at);
      } else {
        putRuns((WritableColumnVector) source, from, count, at, nulls);
      }
    }

    private void putRuns(WritableColumnVector source, int from, int count, int at, boolean nulls) {
      int i = 0;
      while (i < count) {
        if (nulls && source.isNullAt(from + i)) {
          i++;
          Platform.putInt(null, offsets + 4L * (at + i), end);
        } else {
          i += putRun(source, from + i, count - i, at + i, nulls);
        }
      }
    }

    /**
     * Copies the values from row `from` on that lie in memory one directly after the other: mostly
     * all of them. Returns the number of copied values.
     */
    private int putRun(WritableColumnVector source, int from, int most, int at, boolean nulls) {
      int start = source.getArrayOffset(from);
      int length = 0;
      int count = 0;
      do {
        length += source.getArrayLength(from + count);
        count++;
        Platform.putInt(null, offsets + 4L * (at + count), end + length);
      } while (count < most
          && !(nulls && source.isNullAt(from + count))
          && source.getArrayOffset(from + count) == start + length);
      UTF8String view = source.getUTF8String(from);
      copy(view.getBaseObject(), view.getBaseOffset(), length);
      return count;
    }

    /** Copies all values at once: in a FlatColumn one lies directly after the other. */
    private void putRun(FlatColumn source, int from, int count, int at) {
      int first = source.offset(from);
      int moved = end - first;
      copy(null, source.values() + first, source.offset(from + count) - first);
      for (int i = 1; i <= count; i++) {
        Platform.putInt(null, offsets + 4L * (at + i), source.offset(from + i) + moved);
      }
    }

    private void copy(Object base, long offset, int length) {
      if (length > room - end) {
        checkSize((long) end + length);
        makeRoom(Math.max(2 * room, (long) end + length));
      }
      Platform.copyMemory(base, offset, null, values + end, length);
      end += length;
    }

    /**
     * Throws if a column has too many bytes for a batch, whose offsets are ints. Only huge rows can
     * reach the limit, because batchBytes and maxBytesPerBatch keep batches far below it.
     */
    private void checkSize(long bytes) {
      if (bytes > MOST_BYTES) {
        throw new RingException(
            Status.TOO_LARGE,
            "column \"%s\" has %,d bytes in one batch, which can hold %,d; take fewer rows a batch:"
                + " lower .option(\"batchBytes\", ...) of a write, or"
                + " spark.sql.execution.arrow.maxRecordsPerBatch of a function",
            vector.getName(), bytes, MOST_BYTES);
      }
    }

    @Override
    public void finish(int rows) {
      vector.setLastSet(rows - 1);
    }

    @Override
    public void reset() {
      super.reset();
      end = 0;
    }
  }
}
