package io.shmring.spark.columns;

import java.util.Arrays;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Makes Spark's rows of columns. A row stores binaries as it stores texts. Spark's code copies the
 * bytes of a text directly, but makes an array of a binary first, which costs as much again.
 */
public final class ColumnRows {
  private final StructType types;
  private final UnsafeProjection arrays;
  private final UnsafeProjection views; // the same if there are no binaries

  public ColumnRows(StructType types) {
    this.types = types;
    this.arrays = UnsafeProjection.create(types);
    this.views =
        Arrays.stream(types.fields()).anyMatch(ColumnRows::isBinary)
            ? UnsafeProjection.create(texts(types))
            : arrays;
  }

  private static StructType texts(StructType types) {
    StructType texts = new StructType();
    for (StructField field : types.fields()) {
      DataType shown = isBinary(field) ? DataTypes.StringType : field.dataType();
      texts = texts.add(field.name(), shown, field.nullable());
    }
    return texts;
  }

  private static boolean isBinary(StructField field) {
    return field.dataType() instanceof BinaryType;
  }

  /** What makes rows of a batch's; each is valid until the next one is made. */
  public Function<InternalRow, UnsafeRow> of(ColumnarBatch batch) {
    return isViewed(batch) ? views::apply : arrays::apply;
  }

  /** Whether its binaries are columns that give access to their bytes. */
  private boolean isViewed(ColumnarBatch batch) {
    for (int i = 0; i < types.size(); i++) {
      if (isBinary(types.apply(i)) && !(batch.column(i) instanceof FlatColumn)) {
        return false;
      }
    }
    return true;
  }
}
