package io.shmring.spark.columns;

import java.util.Arrays;
import java.util.stream.IntStream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Vectors as Spark's columns. */
public final class RootColumns {
  private RootColumns() {}

  /**
   * @param root vectors whose values were checked to lie inside their buffers, as a decoder does
   */
  public static ColumnarBatch of(VectorSchemaRoot root) {
    return of(root, IntStream.range(0, root.getFieldVectors().size()).toArray());
  }

  /**
   * Returns some of its columns.
   *
   * @param places of these columns, in their order
   */
  public static ColumnarBatch of(VectorSchemaRoot root, int[] places) {
    ColumnVector[] vectors =
        Arrays.stream(places)
            .mapToObj(place -> FlatColumn.of(root.getVector(place)))
            .toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, root.getRowCount());
  }
}
