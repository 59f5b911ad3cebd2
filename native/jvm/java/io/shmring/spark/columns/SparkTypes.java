package io.shmring.spark.columns;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.arrow.vector.complex.MapVector;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

// CHANGE: edit this for a new type between Spark and Arrow
/**
 * Maps Spark's types to the Arrow types that Spark itself passes to Python functions. Spark's own
 * method for this has another signature in each version.
 *
 * @param timeZone time zone of timestamps
 * @param large whether texts and binaries have 64-bit offsets
 */
public record SparkTypes(String timeZone, boolean large) implements Serializable {
  private static final int DECIMAL_BITS = 128;
  private static final Map<DataType, ArrowType> PLAIN =
      Map.of(
          DataTypes.BooleanType, ArrowType.Bool.INSTANCE,
          DataTypes.ByteType, new ArrowType.Int(8, true),
          DataTypes.ShortType, new ArrowType.Int(16, true),
          DataTypes.IntegerType, new ArrowType.Int(32, true),
          DataTypes.LongType, new ArrowType.Int(64, true),
          DataTypes.FloatType, new ArrowType.FloatingPoint(FloatingPointPrecision.SINGLE),
          DataTypes.DoubleType, new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE),
          DataTypes.DateType, new ArrowType.Date(DateUnit.DAY),
          DataTypes.TimestampNTZType, new ArrowType.Timestamp(TimeUnit.MICROSECOND, null));

  public static SparkTypes of(SQLConf settings) {
    return new SparkTypes(settings.sessionLocalTimeZone(), settings.arrowUseLargeVarTypes());
  }

  /**
   * Describes a field that has no Arrow type, or has another field's name; empty if there is no
   * such field.
   */
  public static Optional<String> unsupported(StructType struct) {
    Set<String> names = new HashSet<>();
    for (StructField field : struct.fields()) {
      if (!names.add(field.name())) {
        return Optional.of(String.format("two columns \"%s\"", field.name()));
      }
      if (!isSupported(field.dataType())) {
        return Optional.of(
            String.format(
                "column \"%s\" of the type %s", field.name(), field.dataType().simpleString()));
      }
    }
    return Optional.empty();
  }

  private static boolean isSupported(DataType type) {
    if (type instanceof StructType struct) {
      return unsupported(struct).isEmpty();
    }
    if (type instanceof ArrayType array) {
      return isSupported(array.elementType());
    }
    if (type instanceof MapType map) {
      return isSupported(map.keyType()) && isSupported(map.valueType());
    }
    // Most types are compared by equals(), which refuses a type derived from them, for example a
    // text with a collation.
    return type instanceof DecimalType
        || type instanceof DayTimeIntervalType
        || type.equals(DataTypes.StringType)
        || type.equals(DataTypes.BinaryType)
        || type.equals(DataTypes.TimestampType)
        || PLAIN.containsKey(type);
  }

  /** Returns the Arrow schema of rows whose types are supported. */
  public Schema schema(StructType rows) {
    return new Schema(fields(rows));
  }

  private List<Field> fields(StructType struct) {
    List<Field> fields = new ArrayList<>();
    for (StructField field : struct.fields()) {
      fields.add(field(field.name(), field.dataType(), field.nullable()));
    }
    return fields;
  }

  private Field field(String name, DataType type, boolean nullable) {
    FieldType arrow = new FieldType(nullable, arrow(type), null);
    if (type instanceof StructType struct) {
      return new Field(name, arrow, fields(struct));
    }
    if (type instanceof ArrayType array) {
      Field element = field("element", array.elementType(), array.containsNull());
      return new Field(name, arrow, List.of(element));
    }
    if (type instanceof MapType map) {
      StructType entry =
          new StructType()
              .add(MapVector.KEY_NAME, map.keyType(), false)
              .add(MapVector.VALUE_NAME, map.valueType(), map.valueContainsNull());
      return new Field(name, arrow, List.of(field(MapVector.DATA_VECTOR_NAME, entry, false)));
    }
    return new Field(name, arrow, List.of());
  }

  /** Returns the Arrow type of a supported type, without the types of its elements or fields. */
  public ArrowType arrow(DataType type) {
    if (type instanceof DecimalType decimal) {
      return new ArrowType.Decimal(decimal.precision(), decimal.scale(), DECIMAL_BITS);
    }
    if (type instanceof StructType) {
      return ArrowType.Struct.INSTANCE;
    }
    if (type instanceof ArrayType) {
      return ArrowType.List.INSTANCE;
    }
    if (type instanceof MapType) {
      return new ArrowType.Map(false);
    }
    if (type instanceof DayTimeIntervalType) {
      return new ArrowType.Duration(TimeUnit.MICROSECOND);
    }
    // Use instanceof: a StringType with a collation is not equal to one without a collation.
    if (type instanceof StringType) {
      return large ? ArrowType.LargeUtf8.INSTANCE : ArrowType.Utf8.INSTANCE;
    }
    if (type instanceof BinaryType) {
      return large ? ArrowType.LargeBinary.INSTANCE : ArrowType.Binary.INSTANCE;
    }
    if (type instanceof TimestampType) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, timeZone);
    }
    return Optional.ofNullable(PLAIN.get(type))
        .orElseThrow(() -> new IllegalArgumentException("no Arrow type for " + type));
  }
}
