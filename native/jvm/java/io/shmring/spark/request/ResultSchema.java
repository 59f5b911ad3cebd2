package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.ArrowUtils;

// CHANGE: a new type between Spark and Arrow
/**
 * Whether a sidecar's answers are what Spark's function was declared with: a column of another type
 * would be read by its address.
 */
public final class ResultSchema {
  private static final int DECIMAL_BITS = 128;

  private ResultSchema() {}

  /** Why Spark cannot take such columns, or would take one for another; empty: it can. */
  static Optional<String> difference(Schema got, StructType expected) {
    return difference(got.getFields(), expected.fields(), ColumnMapping.BY_PLACE);
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
                got.get(i).getName(), typeName(got.get(i)), type.simpleString()));
      }
    }
    return Optional.empty();
  }

  /** Raises Spark's own error if there is a type that Spark reads as none of its own. */
  static void requireReadable(Schema got) {
    got.getFields().forEach(ArrowUtils::fromArrowField);
  }

  static List<String> names(List<Field> fields) {
    return fields.stream().map(Field::getName).toList();
  }

  /** An answer's columns as they stand in an error. */
  static String inWords(Schema got) {
    String columns =
        got.getFields().stream()
            .map(field -> field.getName() + " " + typeName(field))
            .collect(Collectors.joining(", "));
    return columns.isEmpty() ? "none" : columns;
  }

  /** A schema as one writes it for Spark. */
  static String inWords(StructType expected) {
    return Arrays.stream(expected.fields())
        .map(field -> field.name() + " " + field.dataType().simpleString())
        .collect(Collectors.joining(", "));
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
          && mapping.inside().takes(names(children), List.of(struct.fieldNames()))
          && difference(children, struct.fields(), mapping.inside()).isEmpty();
    }
    if (expected instanceof StringType) {
      return type instanceof ArrowType.Utf8 || type instanceof ArrowType.LargeUtf8;
    }
    if (expected instanceof BinaryType) {
      return type instanceof ArrowType.Binary || type instanceof ArrowType.LargeBinary;
    }
    if (expected instanceof TimestampType || expected instanceof TimestampNTZType) {
      return type instanceof ArrowType.Timestamp time && time.getUnit() == TimeUnit.MICROSECOND;
    }
    return type.equals(new SparkTypes("UTC", false).arrow(expected));
  }

  /** Spark's name for its type, or Arrow's where Spark has none that it would be taken for. */
  private static String typeName(Field field) {
    try {
      DataType type = ArrowUtils.fromArrowField(field);
      if (isTakenFor(field, type, ColumnMapping.BY_PLACE)) {
        return type.simpleString();
      }
    } catch (RuntimeException error) {
      // Spark has none
    }
    return field.toString().substring((field.getName() + ": ").length());
  }

  /** Which of an answer's columns become which of the declared ones: what Spark's method does. */
  public enum ColumnMapping {
    BY_PLACE,
    BY_NAME,
    /** Names are looked at, and none is moved. */
    BY_BOTH;

    /** Of the fields of a struct. */
    ColumnMapping inside() {
      return this == BY_PLACE ? BY_PLACE : BY_BOTH;
    }

    /** Whether columns with these names can be assigned. */
    boolean takes(List<String> got, List<String> wanted) {
      boolean areKnown =
          this == BY_PLACE || got.stream().sorted().toList().equals(wanted.stream().sorted().toList());
      return areKnown && (this == BY_NAME || areInPlace(got, wanted));
    }

    /** Another name means nothing to Spark, as long as it is not that of another column. */
    private static boolean areInPlace(List<String> got, List<String> wanted) {
      return got.size() == wanted.size()
          && IntStream.range(0, got.size())
              .noneMatch(i -> !got.get(i).equals(wanted.get(i)) && got.contains(wanted.get(i)));
    }

    /** Where each declared column stands in an answer to which there was no objection. */
    int[] places(List<String> got, List<String> wanted) {
      return this == BY_NAME && !got.equals(wanted)
          ? wanted.stream().mapToInt(got::indexOf).toArray()
          : IntStream.range(0, wanted.size()).toArray();
    }
  }

  /**
   * Nulls in an answer where Spark's function was declared to give none. Spark does not look for
   * them there: it would read whatever bytes stand in a null's place.
   */
  static final class NullCheck {
    private final StructField[] declared;
    private final List<Field> fields; // of vectors of these

    NullCheck(StructType declared) {
      this.declared = declared.fields();
      this.fields = new SparkTypes("UTC", false).schema(declared).getFields();
    }

    /** Why Spark cannot take these columns, as in "... answered [with a red one]"; empty: it can. */
    Optional<String> objection(List<FieldVector> columns) {
      return IntStream.range(0, declared.length)
          .filter(i -> mayLack(columns.get(i), fields.get(i)))
          .filter(i -> lacks(columns.get(i), fields.get(i), 0, columns.get(i).getValueCount()))
          .mapToObj(i -> String.format("with a null in %s", inWords(declared[i])))
          .findFirst();
    }

    private static String inWords(StructField field) {
      return field.nullable()
          ? String.format("a part of %s that was declared without nulls", field.name())
          : String.format("%s, which was declared without nulls", field.name());
    }

    /** Whether there is such a null at all, even if it is in a part of a null. */
    private static boolean mayLack(FieldVector vector, Field declared) {
      if (!declared.isNullable() && vector.getNullCount() > 0) {
        return true;
      }
      List<Field> parts = declared.getChildren();
      List<FieldVector> children = vector.getChildrenFromFields(); // none, if all values are null
      return IntStream.range(0, Math.min(parts.size(), children.size()))
          .anyMatch(i -> mayLack(children.get(i), parts.get(i)));
    }

    private static boolean lacks(FieldVector vector, Field declared, int from, int to) {
      return IntStream.range(from, to).anyMatch(row -> lacks(vector, declared, row));
    }

    private static boolean lacks(FieldVector vector, Field declared, int row) {
      if (vector.isNull(row)) {
        return !declared.isNullable();
      }
      List<Field> parts = declared.getChildren();
      List<FieldVector> children = vector.getChildrenFromFields();
      int from = vector instanceof ListVector list ? list.getElementStartIndex(row) : row;
      int to = vector instanceof ListVector list ? list.getElementEndIndex(row) : row + 1;
      return IntStream.range(0, parts.size())
          .anyMatch(i -> lacks(children.get(i), parts.get(i), from, to));
    }
  }
}
