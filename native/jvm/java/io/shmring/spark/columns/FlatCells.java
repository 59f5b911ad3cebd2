package io.shmring.spark.columns;

import io.shmring.RingException;
import io.shmring.Status;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** One column of a batch that is being made. A row is written once room was made for it. */
abstract class FlatCells {
  private final int column;
  private int capacity;
  private boolean nulls;
  private long validity;

  private FlatCells(int column) {
    this.column = column;
  }

  /**
   * @param column of the rows
   */
  static FlatCells of(FieldVector vector, int column, int rows) {
    FlatCells cells =
        vector instanceof BaseVariableWidthVector bytes
            ? new Bytes(bytes, column)
            : new Numbers((BaseFixedWidthVector) vector, column);
    vector.setInitialCapacity(rows);
    vector.allocateNew();
    cells.grow(rows);
    return cells;
  }

  final void write(InternalRow row, int at) {
    boolean isNull = row.isNullAt(column);
    if (isNull) {
      long address = validity + (at >> 3);
      Platform.putByte(null, address, (byte) (Platform.getByte(null, address) & ~(1 << (at & 7))));
      nulls = true;
    }
    put(row, column, at, isNull);
  }

  /** Makes room for so many rows. */
  final void grow(int rows) {
    while (vector().getValueCapacity() < rows) {
      enlarge();
    }
    locate();
    validity = vector().getValidityBufferAddress();
    Platform.setMemory(null, validity + capacity / 8, (rows - capacity) / 8, (byte) 0xff);
    capacity = rows;
  }

  void reset() {
    if (nulls) {
      Platform.setMemory(null, validity, capacity / 8, (byte) 0xff);
      nulls = false;
    }
  }

  /** The vector gets its values; how many it has is told to it afterwards. */
  abstract void finish(int rows);

  abstract FieldVector vector();

  abstract void enlarge();

  /** Looks where the vector's buffers are now. */
  abstract void locate();

  abstract void put(InternalRow row, int column, int at, boolean isNull);

  private static final class Numbers extends FlatCells {
    private final BaseFixedWidthVector vector;
    private final MinorType type;
    private long values;

    Numbers(BaseFixedWidthVector vector, int column) {
      super(column);
      this.vector = vector;
      this.type = vector.getMinorType();
    }

    @Override
    FieldVector vector() {
      return vector;
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
    void put(InternalRow row, int column, int at, boolean isNull) {
      if (isNull) {
        return;
      }
      switch (type) {
        case TINYINT -> Platform.putByte(null, values + at, row.getByte(column));
        case SMALLINT -> Platform.putShort(null, values + 2L * at, row.getShort(column));
        case INT, DATEDAY -> Platform.putInt(null, values + 4L * at, row.getInt(column));
        case FLOAT4 -> Platform.putFloat(null, values + 4L * at, row.getFloat(column));
        case FLOAT8 -> Platform.putDouble(null, values + 8L * at, row.getDouble(column));
        default -> Platform.putLong(null, values + 8L * at, row.getLong(column));
      }
    }

    @Override
    void finish(int rows) {}
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
      super(column);
      this.vector = vector;
      this.text = vector.getMinorType() == MinorType.VARCHAR;
    }

    @Override
    FieldVector vector() {
      return vector;
    }

    @Override
    void enlarge() {
      vector.reallocValidityAndOffsetBuffers();
    }

    @Override
    void locate() {
      offsets = vector.getOffsetBufferAddress();
      values = vector.getDataBufferAddress();
      room = vector.getDataBuffer().capacity();
    }

    @Override
    void put(InternalRow row, int column, int at, boolean isNull) {
      if (!isNull) {
        if (row instanceof UnsafeRow unsafe) {
          long place = unsafe.getLong(column); // offset and size, as UnsafeRow's getBinary knows
          copy(unsafe.getBaseObject(), unsafe.getBaseOffset() + (place >>> 32), (int) place);
        } else if (text) {
          UTF8String string = row.getUTF8String(column);
          copy(string.getBaseObject(), string.getBaseOffset(), string.numBytes());
        } else {
          byte[] bytes = row.getBinary(column);
          copy(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
        }
      }
      Platform.putInt(null, offsets + 4L * (at + 1), end);
    }

    private void copy(Object base, long offset, int length) {
      if (length > room - end) {
        checkSize((long) end + length);
        vector.reallocDataBuffer(Math.max(2 * room, (long) end + length));
        locate();
      }
      Platform.copyMemory(base, offset, null, values + end, length);
      end += length;
    }

    /** A batch's offsets are ints; the option batchBytes keeps all but huge rows below that. */
    private void checkSize(long bytes) {
      if (bytes > MOST_BYTES) {
        throw new RingException(
            Status.TOO_LARGE,
            String.format(
                "column \"%s\" has %,d bytes in one batch, which can hold %,d; lower"
                    + " .option(\"batchBytes\", ...)",
                vector.getName(), bytes, MOST_BYTES));
      }
    }

    @Override
    void finish(int rows) {
      vector.setLastSet(rows - 1);
    }

    @Override
    void reset() {
      super.reset();
      end = 0;
    }
  }
}
