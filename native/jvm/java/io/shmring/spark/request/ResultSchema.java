package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
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

// CHANGE: edit this for a new type between Spark and Arrow
/**
 * Checks that answers of a sidecar or a Python worker have the columns that Spark's function was
 * declared with. Without this check, Spark would read a column of another type as if the column had
 * the declared type.
 */
public final class ResultSchema {
  private static final int DECIMAL_BITS = 128;

  private ResultSchema() {}

  /**
   * Returns why Spark cannot take these columns, or would mistake one for another; empty if it can
   * take them.
   */
  static Optional<String> difference(Schema got, StructType expected) {
    return difference(got.getFields(), expected.fields(), ColumnMapping.BY_PLACE);
  }

  /**
   * Returns why Spark cannot take each of these columns as the declared column at the same place;
   * empty if Spark can take them all.
   *
   * @param mapping how the fields of structs are assigned
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

  /** Raises Spark's own error if a column has a type that Spark cannot read. */
  static void requireReadable(Schema got) {
    got.getFields().forEach(ArrowUtils::fromArrowField);
  }

  static List<String> names(List<Field> fields) {
    return fields.stream().map(Field::getName).toList();
  }

  /** Returns an answer's columns as an error shows them. */
  static String inWords(Schema got) {
    String columns =
        got.getFields().stream()
            .map(field -> field.getName() + " " + typeName(field))
            .collect(Collectors.joining(", "));
    return columns.isEmpty() ? "none" : columns;
  }

  /** Returns a schema in Spark's notation. */
  static String inWords(StructType expected) {
    return Arrays.stream(expected.fields())
        .map(field -> field.name() + " " + field.dataType().simpleString())
        .collect(Collectors.joining(", "));
  }

  /** Whether Spark reads a column of this field as the expected type, without loss. */
  private static boolean isTakenFor(Field got, DataType expected, ColumnMapping mapping) {
    if (got.getDictionary() != null) {
      return false;
    }
    return got.getType() instanceof ArrowType.Null
        || RULES.stream()
            .filter(rule -> rule.types.isInstance(expected))
            .findFirst()
            .map(rule -> rule.takes(got, expected, mapping))
            .orElseGet(() -> got.getType().equals(new SparkTypes("UTC", false).arrow(expected)));
  }

  /** Says which Arrow fields Spark reads as types of one class, without loss. */
  private record Rule<T extends DataType>(Class<T> types, Reading<T> reading) {
    boolean takes(Field got, DataType expected, ColumnMapping mapping) {
      return reading.takes(got, types.cast(expected), mapping);
    }
  }

  private interface Reading<T> {
    boolean takes(Field got, T expected, ColumnMapping mapping);
  }

  // Rules for Spark types that are read from several Arrow types, or that contain other types. Each
  // other Spark type is read from exactly one Arrow type.
  private static final List<Rule<?>> RULES =
      List.of(
          new Rule<>(DecimalType.class, (got, type, mapping) -> isDecimal(got.getType(), type)),
          new Rule<>(
              ArrayType.class,
              (got, type, mapping) ->
                  got.getType() instanceof ArrowType.List
                      && isTakenFor(got.getChildren().get(0), type.elementType(), mapping)),
          new Rule<>(MapType.class, ResultSchema::isMap),
          new Rule<>(
              StructType.class,
              (got, type, mapping) ->
                  got.getType() instanceof ArrowType.Struct
                      && isStruct(got.getChildren(), type, mapping.inside())),
          new Rule<>(
              StringType.class, isOneOf(ArrowType.Utf8.class, ArrowType.LargeUtf8.class)),
          new Rule<>(
              BinaryType.class, isOneOf(ArrowType.Binary.class, ArrowType.LargeBinary.class)),
          new Rule<>(TimestampType.class, (got, type, mapping) -> isMicroseconds(got.getType())),
          new Rule<>(
              TimestampNTZType.class, (got, type, mapping) -> isMicroseconds(got.getType())));

  private static boolean isDecimal(ArrowType got, DecimalType type) {
    return got instanceof ArrowType.Decimal decimal
        && decimal.getBitWidth() == DECIMAL_BITS
        && decimal.getScale() <= type.scale()
        && decimal.getPrecision() - decimal.getScale() <= type.precision() - type.scale();
  }

  private static boolean isMap(Field got, MapType type, ColumnMapping mapping) {
    List<Field> entry =
        got.getType() instanceof ArrowType.Map
            ? got.getChildren().get(0).getChildren()
            : List.of();
    return entry.size() == 2
        && isTakenFor(entry.get(0), type.keyType(), mapping)
        && isTakenFor(entry.get(1), type.valueType(), mapping);
  }

  private static boolean isStruct(List<Field> got, StructType type, ColumnMapping mapping) {
    return mapping.takes(names(got), List.of(type.fieldNames()))
        && difference(got, type.fields(), mapping).isEmpty();
  }

  private static <T> Reading<T> isOneOf(Class<?>... arrow) {
    return (got, type, mapping) ->
        Arrays.stream(arrow).anyMatch(each -> each.isInstance(got.getType()));
  }

  private static boolean isMicroseconds(ArrowType got) {
    return got instanceof ArrowType.Timestamp time && time.getUnit() == TimeUnit.MICROSECOND;
  }

  /** Returns Spark's name of a field's type, or Arrow's if Spark has no type for it. */
  private static String typeName(Field field) {
    try {
      DataType type = ArrowUtils.fromArrowField(field);
      if (isTakenFor(field, type, ColumnMapping.BY_PLACE)) {
        return type.simpleString();
      }
    } catch (RuntimeException error) {
      // Spark has no such type: Arrow's name follows.
    }
    return field.toString().substring((field.getName() + ": ").length());
  }

  /**
   * Ways to assign an answer's columns to the declared columns. Spark's mapInArrow assigns columns
   * by place; its applyInArrow assigns them by name, or by place if Spark's configuration says so.
   */
  public enum ColumnMapping {
    BY_PLACE,
    BY_NAME,
    /** Columns must have the declared names, at the declared places. */
    BY_BOTH;

    /** Returns the mapping of a struct's fields. */
    ColumnMapping inside() {
      return this == BY_PLACE ? BY_PLACE : BY_BOTH;
    }

    /** Whether columns with these names can be assigned. */
    boolean takes(List<String> got, List<String> wanted) {
      boolean areKnown =
          this == BY_PLACE || got.stream().sorted().toList().equals(wanted.stream().sorted().toList());
      return areKnown && (this == BY_NAME || areInPlace(got, wanted));
    }

    /**
     * Returns whether the columns are in the declared order: no declared name may stand at another
     * column's place. Names that were not declared may stand anywhere.
     */
    private static boolean areInPlace(List<String> got, List<String> wanted) {
      return got.size() == wanted.size()
          && IntStream.range(0, got.size())
              .noneMatch(i -> !got.get(i).equals(wanted.get(i)) && got.contains(wanted.get(i)));
    }

    /** Returns the place of each declared column in an answer that {@link #takes} has accepted. */
    int[] places(List<String> got, List<String> wanted) {
      return this == BY_NAME && !got.equals(wanted)
          ? wanted.stream().mapToInt(got::indexOf).toArray()
          : IntStream.range(0, wanted.size()).toArray();
    }
  }

  /**
   * Returns a check that finds nulls in an answer where Spark's function was declared to give none.
   * Spark does not look for nulls there: it would read the undefined bytes in a null's place. The
   * check takes the answer's columns, and returns why Spark cannot take them, worded to follow "...
   * answered", or empty.
   */
  static Function<List<FieldVector>, Optional<String>> nullCheck(StructType declared) {
    List<Field> fields = new SparkTypes("UTC", false).schema(declared).getFields();
    return columns ->
        IntStream.range(0, fields.size())
            .filter(i -> mayHaveForbiddenNull(columns.get(i), fields.get(i)))
            .filter(i -> hasForbiddenNull(columns.get(i), fields.get(i)))
            .mapToObj(i -> String.format("with a null in %s", inWords(declared.apply(i))))
            .findFirst();
  }

  private static String inWords(StructField field) {
    return field.nullable()
        ? String.format("a part of %s that was declared without nulls", field.name())
        : String.format("%s, which was declared without nulls", field.name());
  }

  /**
   * Returns false if the null counts alone rule out a forbidden null. If true, hasForbiddenNull()
   * has to look at each row, because a counted null may lie inside a null value, where nulls are
   * allowed.
   */
  private static boolean mayHaveForbiddenNull(FieldVector vector, Field declared) {
    if (!declared.isNullable() && vector.getNullCount() > 0) {
      return true;
    }
    List<Field> parts = declared.getChildren();
    // A vector of Arrow's Null type has no children, even if a struct or list was declared.
    List<FieldVector> children = vector.getChildrenFromFields();
    return IntStream.range(0, Math.min(parts.size(), children.size()))
        .anyMatch(i -> mayHaveForbiddenNull(children.get(i), parts.get(i)));
  }

  private static boolean hasForbiddenNull(FieldVector vector, Field declared) {
    return hasForbiddenNull(vector, declared, 0, vector.getValueCount());
  }

  private static boolean hasForbiddenNull(FieldVector vector, Field declared, int from, int to) {
    return IntStream.range(from, to).anyMatch(row -> hasForbiddenNull(vector, declared, row));
  }

  private static boolean hasForbiddenNull(FieldVector vector, Field declared, int row) {
    if (vector.isNull(row)) {
      return !declared.isNullable();
    }
    List<Field> parts = declared.getChildren();
    List<FieldVector> children = vector.getChildrenFromFields();
    int from = vector instanceof ListVector list ? list.getElementStartIndex(row) : row;
    int to = vector instanceof ListVector list ? list.getElementEndIndex(row) : row + 1;
    return IntStream.range(0, parts.size())
        .anyMatch(i -> hasForbiddenNull(children.get(i), parts.get(i), from, to));
  }
}
