package io.shmring.spark.columns;

import io.shmring.Ring;
import io.shmring.arrow.Conversion;
import io.shmring.arrow.RingSchema;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

// CHANGE: edit this for a new type between Spark and Arrow
/**
 * The columns of a ring for Spark: its Arrow schema, or the queue table if it is a ring of bytes.
 */
public final class RingTypes {
  static final String SLOT = "slot";
  static final String MESSAGE_ID = "message_id";
  static final String TIME = "time";
  static final String MESSAGE = "message";
  static final String REFERENCE_COUNT = "reference_count";

  public static final StructType QUEUE_TABLE =
      new StructType()
          .add(SLOT, DataTypes.LongType, false)
          .add(MESSAGE_ID, DataTypes.LongType, false)
          .add(TIME, DataTypes.TimestampType, true)
          .add(MESSAGE, DataTypes.BinaryType, false)
          .add(REFERENCE_COUNT, DataTypes.IntegerType, false);

  private RingTypes() {}

  /** Returns the common schema of some rings. */
  public static StructType of(List<String> rings) {
    StructType common = null;
    for (String name : rings) {
      try (Ring ring = Ring.attachReadOnly(name)) {
        StructType type = of(ring);
        if (common != null && !common.equals(type)) {
          throw new IllegalArgumentException(
              String.format(
                  "the rings \"%s\" and \"%s\" differ:%n%s%s; read them one by one",
                  rings.get(0), name, common.treeString(), type.treeString()));
        }
        common = type;
      }
    }
    return common;
  }

  public static StructType of(Ring ring) {
    Optional<RingSchema> schema = RingSchema.of(ring);
    if (schema.isEmpty()) {
      return QUEUE_TABLE;
    }
    StructType type = new StructType();
    Set<String> names = new TreeSet<>();
    for (Field field : schema.get().plain().getFields()) {
      if (!names.add(field.getName())) {
        throw new IllegalArgumentException(
            String.format(
                "ring \"%s\" has two columns \"%s\"; Spark tells columns by name",
                ring.name(), field.getName()));
      }
      type = type.add(field.getName(), dataType(ring, field), field.isNullable());
    }
    return type;
  }

  /**
   * Refuses Arrow's view types, such as Utf8View: Spark has names for these types, but no columns
   * that read them.
   */
  private static void checkViews(Field field) {
    if (field.getType().getTypeID().name().endsWith("View")) {
      throw new IllegalArgumentException("its columns have no " + field.getType());
    }
    field.getChildren().forEach(RingTypes::checkViews);
  }

  /**
   * Refuses a ring with a column whose type a read converts (see Conversion), for example
   * nanoseconds: Spark would write the converted type, which the ring does not have.
   */
  public static void checkWritable(Ring ring) {
    RingSchema.of(ring).stream()
        .flatMap(schema -> schema.plain().getFields().stream())
        .filter(field -> !Conversion.of(field).equals(field))
        .findFirst()
        .ifPresent(
            field -> {
              throw new IllegalArgumentException(
                  String.format(
                      "ring \"%s\": column \"%s\" is %s, and Spark would write %s: create the ring"
                          + " with that",
                      ring.name(), field.getName(), field, Conversion.of(field)));
            });
  }

  private static DataType dataType(Ring ring, Field field) {
    try {
      checkViews(field);
      return ArrowUtils.fromArrowField(Conversion.of(field));
    } catch (Exception error) {
      throw new IllegalArgumentException(
          String.format(
              "ring \"%s\": column \"%s\" has the Arrow type %s, which Spark cannot read (%s); let"
                  + " its producers cast it, views to plain texts and lists, times to microseconds",
              ring.name(), field.getName(), field.getType(), error.getMessage()),
          error);
    }
  }
}
