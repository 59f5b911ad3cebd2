package io.shmring.spark.request;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;

/** Rows in the format that most of Spark's operators give them in. */
final class UnsafeRows {
  private final UnsafeProjection projection;

  UnsafeRows(StructType types) {
    this.projection = UnsafeProjection.create(types);
  }

  /** The row itself if it is one of these. */
  UnsafeRow of(InternalRow row) {
    return row instanceof UnsafeRow ready ? ready : projection.apply(row);
  }
}
