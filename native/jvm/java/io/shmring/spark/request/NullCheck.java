package io.shmring.spark.request;

import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * Nulls in an answer where Spark's function was declared to give none. Spark does not look for them
 * there: it would read whatever bytes stand in a null's place.
 */
final class NullCheck {
  private NullCheck() {}

  /** Why Spark cannot take these columns, as in "... answered [with a red one]"; empty: it can. */
  static Optional<String> objection(List<FieldVector> columns, StructField[] declared) {
    return IntStream.range(0, declared.length)
        .filter(i -> mayLack(columns.get(i), declared[i]))
        .filter(i -> lacks(columns.get(i), declared[i], 0, columns.get(i).getValueCount()))
        .mapToObj(i -> String.format("with a null in %s", inWords(declared[i])))
        .findFirst();
  }

  private static String inWords(StructField field) {
    return field.nullable()
        ? String.format("a part of %s that was declared without nulls", field.name())
        : String.format("%s, which was declared without nulls", field.name());
  }

  /** Whether there is such a null at all, even if it is in a part of a null. */
  private static boolean mayLack(FieldVector vector, StructField declared) {
    if (!declared.nullable() && vector.getNullCount() > 0) {
      return true;
    }
    List<StructField> parts = parts(declared.dataType());
    List<FieldVector> children = vector.getChildrenFromFields(); // none, if all values are null
    return IntStream.range(0, Math.min(parts.size(), children.size()))
        .anyMatch(i -> mayLack(children.get(i), parts.get(i)));
  }

  private static boolean lacks(FieldVector vector, StructField declared, int from, int to) {
    return IntStream.range(from, to).anyMatch(row -> lacks(vector, declared, row));
  }

  private static boolean lacks(FieldVector vector, StructField declared, int row) {
    if (vector.isNull(row)) {
      return !declared.nullable();
    }
    List<StructField> parts = parts(declared.dataType());
    List<FieldVector> children = vector.getChildrenFromFields();
    int from = vector instanceof ListVector list ? list.getElementStartIndex(row) : row;
    int to = vector instanceof ListVector list ? list.getElementEndIndex(row) : row + 1;
    return IntStream.range(0, parts.size())
        .anyMatch(i -> lacks(children.get(i), parts.get(i), from, to));
  }

  /** The fields of the vectors inside one of this type. */
  private static List<StructField> parts(DataType type) {
    if (type instanceof StructType struct) {
      return List.of(struct.fields());
    }
    StructType none = new StructType();
    if (type instanceof ArrayType array) {
      return List.of(none.add("", array.elementType(), array.containsNull()).fields());
    }
    if (type instanceof MapType map) {
      StructType entry =
          none.add("", map.keyType(), false).add("", map.valueType(), map.valueContainsNull());
      return List.of(none.add("", entry, false).fields());
    }
    return List.of();
  }
}
