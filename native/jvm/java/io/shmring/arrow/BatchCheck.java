package io.shmring.arrow;

import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseLargeVariableWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;

/**
 * Checks that every value of a vector lies inside its buffers. Spark reads strings without checking
 * the bounds, so a damaged offset would end the process.
 */
final class BatchCheck {
  private BatchCheck() {}

  /**
   * @throws IllegalArgumentException if a value lies outside
   */
  static void check(FieldVector vector, int rows) {
    if (vector.getValueCount() < rows) {
      throw damaged(vector, "it has " + vector.getValueCount() + " values of " + rows);
    }
    if (vector instanceof NullVector) {
      return;
    }
    checkSize(vector, "validity", vector.getValidityBuffer(), (rows + 7L) / 8);
    if (vector instanceof BitVector) {
      checkSize(vector, "values", vector.getDataBuffer(), (rows + 7L) / 8);
    } else if (vector instanceof BaseFixedWidthVector fixed) {
      checkSize(vector, "values", vector.getDataBuffer(), (long) rows * fixed.getTypeWidth());
    } else if (vector instanceof BaseVariableWidthVector) {
      checkOffsets(vector, Integer.BYTES, rows, vector.getDataBuffer().capacity());
    } else if (vector instanceof BaseLargeVariableWidthVector) {
      checkOffsets(vector, Long.BYTES, rows, vector.getDataBuffer().capacity());
    } else {
      checkNested(vector, rows);
    }
  }

  private static void checkNested(FieldVector vector, int rows) {
    if (vector instanceof ListVector list) {
      FieldVector values = list.getDataVector();
      checkOffsets(vector, Integer.BYTES, rows, values.getValueCount());
      check(values, values.getValueCount());
    } else if (vector instanceof LargeListVector list) {
      FieldVector values = list.getDataVector();
      checkOffsets(vector, Long.BYTES, rows, values.getValueCount());
      check(values, values.getValueCount());
    } else if (vector instanceof FixedSizeListVector list) {
      check(list.getDataVector(), Math.multiplyExact(rows, list.getListSize()));
    } else if (vector instanceof StructVector struct) {
      struct.getChildrenFromFields().forEach(child -> check(child, rows));
    } else {
      throw damaged(vector, "vectors of type " + vector.getMinorType() + " cannot be checked");
    }
  }

  /**
   * @param width of an offset, in bytes
   * @param end the largest value of the last offset
   */
  private static void checkOffsets(FieldVector vector, int width, int rows, long end) {
    if (rows == 0) {
      return;
    }
    ArrowBuf offsets = vector.getOffsetBuffer();
    checkSize(vector, "offsets", offsets, (rows + 1L) * width);
    long before = 0;
    for (long i = 0; i <= rows; i++) {
      long offset =
          width == Long.BYTES ? offsets.getLong(i * width) : offsets.getInt(i * width);
      if (offset < before) {
        throw damaged(vector, "offset " + i + " is " + offset + " after " + before);
      }
      before = offset;
    }
    if (before > end) {
      throw damaged(vector, "its values end at " + before + " of " + end);
    }
  }

  private static void checkSize(FieldVector vector, String what, ArrowBuf buffer, long least) {
    if (buffer.capacity() < least) {
      throw damaged(
          vector, "its buffer of " + what + " has " + buffer.capacity() + " bytes of " + least);
    }
  }

  private static IllegalArgumentException damaged(FieldVector vector, String what) {
    return new IllegalArgumentException("column \"" + vector.getName() + "\": " + what);
  }
}
