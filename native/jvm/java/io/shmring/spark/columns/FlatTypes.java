package io.shmring.spark.columns;

import org.apache.arrow.vector.FieldVector;

/**
 * The types whose values are read ({@link FlatColumn}) and written ({@link FlatCells}) by their
 * addresses. Spark's own classes read and write all others.
 */
final class FlatTypes {
  private FlatTypes() {}

  static boolean has(FieldVector vector) {
    return switch (vector.getMinorType()) {
      case TINYINT, SMALLINT, INT, BIGINT, FLOAT4, FLOAT8 -> true;
      case DATEDAY, TIMESTAMPMICRO, TIMESTAMPMICROTZ, VARCHAR, VARBINARY -> true;
      default -> false;
    };
  }
}
