package io.shmring.spark.columns;

import java.util.Arrays;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Turns the rows of columnar batches into rows in Spark's own format (UnsafeRow). An UnsafeRow
 * stores a binary as it stores a text. Spark's code copies the bytes of a text directly, but copies
 * a binary into an array first, which doubles the cost; so binaries are read as texts if possible.
 */
public final class ColumnRows {
  private final StructType types;
  // Reads binaries as arrays. This projection and `views` are made for the first batch, because
  // making them takes a millisecond, and a task that gives columns and no rows needs neither.
  private UnsafeProjection arrays;
  // Reads binaries as texts; the same object as `arrays` if there are no binaries.
  private UnsafeProjection views;

  public ColumnRows(StructType types) {
    this.types = types;
  }

  /**
   * Returns a projection that does not look for nulls in columns whose type allows none, as in
   * Spark's own nodes: a null in such a column is an error. A projection that
   * UnsafeProjection.create(StructType) makes looks for nulls in every column.
   */
  private static UnsafeProjection projection(StructType types) {
    StructField[] fields = types.fields();
    return UnsafeProjection.create(
        CollectionConverters.asScala(
                IntStream.range(0, fields.length)
                    .<Expression>mapToObj(
                        i -> new BoundReference(i, fields[i].dataType(), fields[i].nullable()))
                    .toList())
            .toList());
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

  /**
   * Returns a function that turns a row of the batch into an UnsafeRow, which is valid until the
   * next call of the function.
   */
  public Function<InternalRow, UnsafeRow> of(ColumnarBatch batch) {
    if (arrays == null) {
      arrays = projection(types);
      views =
          Arrays.stream(types.fields()).anyMatch(ColumnRows::isBinary)
              ? projection(texts(types))
              : arrays;
    }
    return isViewed(batch) ? views::apply : arrays::apply;
  }

  /** Returns whether all binary columns of a batch give access to their bytes. */
  private boolean isViewed(ColumnarBatch batch) {
    for (int i = 0; i < types.size(); i++) {
      if (isBinary(types.apply(i)) && !(batch.column(i) instanceof FlatColumn)) {
        return false;
      }
    }
    return true;
  }
}
