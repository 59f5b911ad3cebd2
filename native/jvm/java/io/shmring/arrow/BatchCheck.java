package io.shmring.arrow;

import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseLargeVariableWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BaseVariableWidthViewVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;

// CHANGE: edit this for a new type between Spark and Arrow
/**
 * Checks that every value of a vector lies inside its buffers. Spark reads strings without checking
 * the bounds, so a damaged offset would end the process.
 */
public final class BatchCheck {
  private BatchCheck() {}

  /**
   * @throws IllegalArgumentException if a value lies outside the vector's buffers
   */
  public static void check(FieldVector vector, int rows) {
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
    } else if (vector instanceof BaseVariableWidthViewVector views) {
      checkViews(views, rows);
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
   * @param width size of an offset in bytes
   * @param end the largest allowed value of the last offset
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

  /**
   * Checks a vector of views. A short value lies inside its view; the view of a longer value says
   * where the value lies.
   */
  private static void checkViews(BaseVariableWidthViewVector vector, int rows) {
    ArrowBuf views = vector.getDataBuffer();
    checkSize(vector, "views", views, (long) rows * BaseVariableWidthViewVector.ELEMENT_SIZE);
    List<ArrowBuf> buffers = vector.getDataBuffers();
    for (int row = 0; row < rows; row++) {
      long at = (long) row * BaseVariableWidthViewVector.ELEMENT_SIZE;
      int length = vector.isNull(row) ? 0 : views.getInt(at);
      boolean isWithin = length >= 0;
      if (length > BaseVariableWidthViewVector.INLINE_SIZE) {
        int buffer = views.getInt(at + 8);
        long offset = views.getInt(at + 12);
        isWithin =
            buffer >= 0
                && buffer < buffers.size()
                && offset >= 0
                && offset + length <= buffers.get(buffer).capacity();
      }
      if (!isWithin) {
        throw damaged(vector, "value " + row + " lies outside");
      }
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
