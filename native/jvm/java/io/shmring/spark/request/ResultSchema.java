package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.arrow.vector.types.DateUnit;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

// CHANGE: a new type between Spark and sidecars
/**
 * Whether a sidecar's answers are what Spark's function was declared with. It is what
 * spark/functions/expected.py asks in Python workers, in the same words; here a column of another type
 * would be read by its address.
 */
final class ResultSchema {
  private static final int DECIMAL_BITS = 128;

  private ResultSchema() {}

  /** Why Spark cannot take such columns, or would take one for another; empty: it can. */
  static Optional<String> difference(Schema got, StructType expected) {
    return difference(got.getFields(), expected, ColumnMapping.BY_PLACE);
  }

  /**
   * Why Spark cannot take these columns, each as the declared one at its place.
   *
   * @param mapping how fields inside them are told apart
   */
  static Optional<String> difference(List<Field> got, StructField[] fields, ColumnMapping mapping) {
    for (int i = 0; i < fields.length; i++) {
      DataType type = fields[i].dataType();
      if (!isTakenFor(got.get(i), type, mapping)) {
        return Optional.of(
            String.format(
                "%s is %s, not %s",
                got.get(i).getName(), arrowName(got.get(i)), type.simpleString()));
      }
    }
    return Optional.empty();
  }

  /** An answer's columns as they stand in an error. */
  static String inWords(Schema got) {
    String columns =
        got.getFields().stream()
            .map(field -> field.getName() + " " + arrowName(field))
            .collect(Collectors.joining(", "));
    return columns.isEmpty() ? "none" : columns;
  }

  /** A schema as one writes it for Spark. */
  static String inWords(StructType expected) {
    return Arrays.stream(expected.fields())
        .map(field -> field.name() + " " + field.dataType().simpleString())
        .collect(Collectors.joining(", "));
  }

  private static Optional<String> difference(
      List<Field> got, StructType expected, ColumnMapping mapping) {
    return mapping
        .objection(got.stream().map(Field::getName).toList(), List.of(expected.fieldNames()))
        .or(() -> difference(got, expected.fields(), mapping));
  }

  /** Whether Spark reads such a column as this type, without losing anything. */
  private static boolean isTakenFor(Field got, DataType expected, ColumnMapping mapping) {
    ArrowType type = got.getType();
    List<Field> children = got.getChildren();
    if (got.getDictionary() != null) {
      return false;
    }
    if (type instanceof ArrowType.Null) {
      return true;
    }
    if (expected instanceof DecimalType wanted) {
      return type instanceof ArrowType.Decimal decimal
          && decimal.getBitWidth() == DECIMAL_BITS
          && decimal.getScale() <= wanted.scale()
          && decimal.getPrecision() - decimal.getScale() <= wanted.precision() - wanted.scale();
    }
    if (expected instanceof ArrayType array) {
      return type instanceof ArrowType.List
          && isTakenFor(children.get(0), array.elementType(), mapping);
    }
    if (expected instanceof MapType map) {
      List<Field> entry = type instanceof ArrowType.Map ? children.get(0).getChildren() : List.of();
      return entry.size() == 2
          && isTakenFor(entry.get(0), map.keyType(), mapping)
          && isTakenFor(entry.get(1), map.valueType(), mapping);
    }
    if (expected instanceof StructType struct) {
      return type instanceof ArrowType.Struct
          && difference(children, struct, mapping.inside()).isEmpty();
    }
    if (expected instanceof DayTimeIntervalType) {
      return type instanceof ArrowType.Duration duration
          && duration.getUnit() == TimeUnit.MICROSECOND;
    }
    return isTakenFor(type, SparkTypes.nameOf(expected));
  }

  private static boolean isTakenFor(ArrowType type, String expected) {
    return switch (expected) {
      case "boolean" -> type instanceof ArrowType.Bool;
      case "byte" -> isInt(type, 8);
      case "short" -> isInt(type, 16);
      case "integer" -> isInt(type, 32);
      case "long" -> isInt(type, 64);
      case "float" -> isFloat(type, FloatingPointPrecision.SINGLE);
      case "double" -> isFloat(type, FloatingPointPrecision.DOUBLE);
      case "string" -> type instanceof ArrowType.Utf8 || type instanceof ArrowType.LargeUtf8;
      case "binary" -> type instanceof ArrowType.Binary || type instanceof ArrowType.LargeBinary;
      case "date" -> type instanceof ArrowType.Date date && date.getUnit() == DateUnit.DAY;
      case "timestamp", "timestamp_ntz" ->
          type instanceof ArrowType.Timestamp time && time.getUnit() == TimeUnit.MICROSECOND;
      default -> false;
    };
  }

  private static boolean isInt(ArrowType type, int bits) {
    return type instanceof ArrowType.Int number
        && number.getIsSigned()
        && number.getBitWidth() == bits;
  }

  private static boolean isFloat(ArrowType type, FloatingPointPrecision precision) {
    return type instanceof ArrowType.FloatingPoint number && number.getPrecision() == precision;
  }

  /** As pyarrow calls it, which is where the user sees it otherwise. */
  private static String arrowName(Field field) {
    ArrowType type = field.getType();
    List<Field> children = field.getChildren();
    if (field.getDictionary() != null) {
      return "dictionary";
    }
    if (type instanceof ArrowType.Int number) {
      return (number.getIsSigned() ? "int" : "uint") + number.getBitWidth();
    }
    if (type instanceof ArrowType.FloatingPoint number) {
      return switch (number.getPrecision()) {
        case HALF -> "halffloat";
        case SINGLE -> "float";
        case DOUBLE -> "double";
      };
    }
    if (type instanceof ArrowType.Decimal decimal) {
      return String.format(
          "decimal%d(%d, %d)", decimal.getBitWidth(), decimal.getPrecision(), decimal.getScale());
    }
    if (type instanceof ArrowType.Timestamp time) {
      String zone = time.getTimezone() == null ? "" : ", tz=" + time.getTimezone();
      return String.format("timestamp[%s%s]", unit(time.getUnit()), zone);
    }
    if (type instanceof ArrowType.Duration duration) {
      return String.format("duration[%s]", unit(duration.getUnit()));
    }
    if (type instanceof ArrowType.Date date) {
      return date.getUnit() == DateUnit.DAY ? "date32[day]" : "date64[ms]";
    }
    if (type instanceof ArrowType.List) {
      return "list<" + inWords(children) + ">";
    }
    if (type instanceof ArrowType.Struct) {
      return "struct<" + inWords(children) + ">";
    }
    if (type instanceof ArrowType.Map) {
      List<Field> entry = children.get(0).getChildren();
      return "map<" + arrowName(entry.get(0)) + ", " + arrowName(entry.get(1)) + ">";
    }
    return simpleName(type);
  }

  private static String simpleName(ArrowType type) {
    return switch (type.getTypeID()) {
      case Utf8 -> "string";
      case LargeUtf8 -> "large_string";
      case Utf8View -> "string_view";
      case LargeBinary -> "large_binary";
      case BinaryView -> "binary_view";
      default -> type.getTypeID().name().toLowerCase(Locale.ROOT);
    };
  }

  private static String inWords(List<Field> fields) {
    return fields.stream()
        .map(field -> field.getName() + ": " + arrowName(field))
        .collect(Collectors.joining(", "));
  }

  private static String unit(TimeUnit unit) {
    return switch (unit) {
      case SECOND -> "s";
      case MILLISECOND -> "ms";
      case MICROSECOND -> "us";
      case NANOSECOND -> "ns";
    };
  }
}
