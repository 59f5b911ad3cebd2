package io.shmring.spark.columns;

import java.util.Arrays;
import java.util.stream.Stream;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.Types.MinorType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of numbers, times, texts or bytes, read in place like Spark's own off-heap columns.
 * Arrow's accessors check each value's index and buffer again, which takes twice as long as
 * everything else in a sum; here the batch was checked once, when it was decoded. In all other
 * respects the column is Arrow's: columnar Python functions take its vector.
 */
public final class FlatColumn extends ArrowColumnVector {
  private final long validity; // address of the validity bits; 0 if no value is null
  private final long offsets;
  private final long values;

  private FlatColumn(FieldVector vector) {
    super(vector);
    this.validity = vector.getNullCount() == 0 ? 0 : vector.getValidityBufferAddress();
    this.offsets =
        vector instanceof BaseVariableWidthVector ? vector.getOffsetBufferAddress() : 0;
    this.values = vector.getDataBufferAddress();
  }

  /**
   * Returns the columns of vectors.
   *
   * @param root vectors whose values were checked to lie inside their buffers, as decoders do
   */
  public static ColumnarBatch batch(VectorSchemaRoot root) {
    return batch(root.getFieldVectors().stream(), root.getRowCount());
  }

  /**
   * Returns the first `columns` columns of `one`, followed by all columns of `other`, which has as
   * many rows.
   */
  public static ColumnarBatch batch(VectorSchemaRoot one, int columns, VectorSchemaRoot other) {
    Stream<FieldVector> first = one.getFieldVectors().stream().limit(columns);
    return batch(Stream.concat(first, other.getFieldVectors().stream()), one.getRowCount());
  }

  private static ColumnarBatch batch(Stream<FieldVector> vectors, int rows) {
    return new ColumnarBatch(vectors.map(FlatColumn::of).toArray(ColumnVector[]::new), rows);
  }

  /**
   * Returns some of the columns of vectors.
   *
   * @param places numbers of the wanted columns, in the wanted order
   */
  public static ColumnarBatch batch(VectorSchemaRoot root, int[] places) {
    return batch(Arrays.stream(places).mapToObj(root::getVector), root.getRowCount());
  }

  private static ArrowColumnVector of(FieldVector vector) {
    return isFlat(vector.getMinorType()) ? new FlatColumn(vector) : new ArrowColumnVector(vector);
  }

  @Override
  public boolean isNullAt(int row) {
    return validity != 0
        && (Platform.getByte(null, validity + (row >> 3)) >> (row & 7) & 1) == 0;
  }

  @Override
  public byte getByte(int row) {
    return Platform.getByte(null, values + row);
  }

  @Override
  public short getShort(int row) {
    return Platform.getShort(null, values + (long) row * Short.BYTES);
  }

  @Override
  public int getInt(int row) {
    return Platform.getInt(null, values + (long) row * Integer.BYTES);
  }

  @Override
  public long getLong(int row) {
    return Platform.getLong(null, values + (long) row * Long.BYTES);
  }

  @Override
  public float getFloat(int row) {
    return Platform.getFloat(null, values + (long) row * Float.BYTES);
  }

  @Override
  public double getDouble(int row) {
    return Platform.getDouble(null, values + (long) row * Double.BYTES);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = offset(row);
    return UTF8String.fromAddress(null, values + start, offset(row + 1) - start);
  }

  @Override
  public byte[] getBinary(int row) {
    if (isNullAt(row)) {
      return null;
    }
    int start = offset(row);
    byte[] bytes = new byte[offset(row + 1) - start];
    Platform.copyMemory(null, values + start, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
    return bytes;
  }

  /** Returns the address of the values. */
  long values() {
    return values;
  }

  /**
   * Returns the distance in bytes from values() to the text or binary of a row. If `row` is the
   * number of rows, returns the distance from values() to the end of the last value.
   */
  int offset(int row) {
    return Platform.getInt(null, offsets + (long) row * Integer.BYTES);
  }

  // CHANGE: edit this for a new type between Spark and Arrow
  /**
   * Returns whether this class reads, and {@link FlatCells} writes, values of the type by their
   * addresses. Spark's own classes read and write all other types.
   */
  public static boolean isFlat(MinorType type) {
    return switch (type) {
      case TINYINT, SMALLINT, INT, BIGINT, FLOAT4, FLOAT8 -> true;
      case DATEDAY, TIMESTAMPMICRO, TIMESTAMPMICROTZ, VARCHAR, VARBINARY -> true;
      default -> false;
    };
  }
}
