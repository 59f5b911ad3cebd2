package io.shmring.spark.request;

import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Bits that a row takes in vectors at the least: its values and offsets, and no bit for a null. */
final class LeastBits {
  private static final int OFFSET = 32;

  private LeastBits() {}

  static long of(StructType types, SpecializedGetters values) {
    StructField[] fields = types.fields();
    long bits = 0;
    for (int i = 0; i < fields.length; i++) {
      bits += value(fields[i].dataType(), values, i);
    }
    return bits;
  }

  private static long elements(DataType type, ArrayData values) {
    long bits = 0;
    for (int i = 0; i < values.numElements(); i++) {
      bits += value(type, values, i);
    }
    return bits;
  }

  private static long value(DataType type, SpecializedGetters values, int at) {
    if (type instanceof StructType struct) {
      return values.isNullAt(at) ? 0 : of(struct, values.getStruct(at, struct.size()));
    }
    if (type instanceof ArrayType array) {
      return OFFSET
          + (values.isNullAt(at) ? 0 : elements(array.elementType(), values.getArray(at)));
    }
    if (type instanceof MapType map) {
      return OFFSET + (values.isNullAt(at) ? 0 : entries(map, values.getMap(at)));
    }
    if (type instanceof StringType || type instanceof BinaryType) {
      // The lower half of the word is the length: a binary would be copied to be asked for its own.
      return OFFSET + (values.isNullAt(at) ? 0 : (int) values.getLong(at) * (long) Byte.SIZE);
    }
    return type instanceof BooleanType ? 1 : type.defaultSize() * (long) Byte.SIZE;
  }

  private static long entries(MapType types, MapData map) {
    return elements(types.keyType(), map.keyArray())
        + elements(types.valueType(), map.valueArray());
  }
}
