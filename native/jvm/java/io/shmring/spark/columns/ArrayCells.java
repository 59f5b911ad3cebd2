package io.shmring.spark.columns;

import io.shmring.RingException;
import io.shmring.Status;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.Platform;

/**
 * Writes a column of arrays whose elements {@link FlatCells} can write, for example embeddings. An
 * array of numbers without nulls is copied in one step; Spark's writer, which goes number by
 * number, took ten times as long.
 */
final class ArrayCells implements RootWriter.Cells {
  private static final int FIRST_ELEMENTS = 1024;
  // Maximum number of elements of a batch. The room doubles when it is full, and an int
  // cannot hold twice this number.
  private static final int MOST_ELEMENTS = 1 << 30;

  private final ListVector vector;
  private final FlatCells elements;
  private final int column;
  private final FlatCells.Validity validity = new FlatCells.Validity();
  private int room; // number of elements that the vector has memory for
  private int end; // number of elements written
  private long offsets;

  /** Returns whether this class writes a vector's arrays. */
  static boolean take(FieldVector vector) {
    return vector.getMinorType() == MinorType.LIST
        && FlatColumn.isFlat(((ListVector) vector).getDataVector().getMinorType());
  }

  /**
   * @param column number of the column in the rows
   * @param room least number of elements that fit before the vector has to grow
   */
  ArrayCells(ListVector vector, int column, int rows, long room) {
    this.vector = vector;
    this.column = column;
    this.room = (int) Math.max(FIRST_ELEMENTS, room);
    vector.setInitialCapacity(rows);
    vector.allocateNew();
    this.elements = FlatCells.of(vector.getDataVector(), 0, this.room, 0);
    grow(rows);
  }

  @Override
  public void write(InternalRow row, int at) {
    if (row.isNullAt(column)) {
      validity.setNull(at);
    } else {
      append(row.getArray(column));
    }
    Platform.putInt(null, offsets + 4L * (at + 1), end);
  }

  private void append(ArrayData array) {
    int count = array.numElements();
    if (count > room - end) {
      enlarge((long) end + count);
    }
    int width = elements.width();
    if (width > 0 && array instanceof UnsafeArrayData unsafe && !hasNulls(unsafe)) {
      long first =
          unsafe.getBaseOffset() + UnsafeArrayData.calculateHeaderPortionInBytes(count);
      Platform.copyMemory(
          unsafe.getBaseObject(),
          first,
          null,
          elements.values() + (long) end * width,
          (long) count * width);
    } else {
      for (int i = 0; i < count; i++) {
        elements.write(array, i, end + i);
      }
    }
    end += count;
  }

  /** Returns whether an array has a null: a bit for each element follows the number of elements. */
  private static boolean hasNulls(UnsafeArrayData array) {
    long bits = array.getBaseOffset() + Long.BYTES;
    long behind =
        array.getBaseOffset()
            + UnsafeArrayData.calculateHeaderPortionInBytes(array.numElements());
    for (; bits < behind; bits += Long.BYTES) {
      if (Platform.getLong(array.getBaseObject(), bits) != 0) {
        return true;
      }
    }
    return false;
  }

  private void enlarge(long count) {
    if (count > MOST_ELEMENTS) {
      throw new RingException(
          Status.TOO_LARGE,
          "the arrays of column \"%s\" have %,d elements in one batch, which can hold %,d; take"
              + " fewer rows a batch",
          vector.getName(), count, MOST_ELEMENTS);
    }
    while (room < count) {
      room *= 2;
    }
    elements.grow(room);
  }

  @Override
  public void grow(int rows) {
    if (vector.getValueCapacity() < rows) {
      vector.setLastSet(rows - 1); // else setValueCount() would overwrite the offsets from write()
      // Grows the offsets only: reAlloc() would double the elements too, however few come.
      vector.setValueCount(rows);
    }
    validity.grow(vector.getValidityBufferAddress(), rows);
    offsets = vector.getOffsetBufferAddress();
  }

  @Override
  public long room() {
    return room;
  }

  @Override
  public long bytes(int rows) {
    return vector.getBufferSizeFor(rows);
  }

  @Override
  public void finish(int rows) {
    elements.finish(end);
    vector.setLastSet(rows - 1);
  }

  @Override
  public void reset() {
    elements.reset();
    end = 0;
    validity.reset();
  }
}
