package io.shmring.spark.columns;

import java.util.Arrays;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Vectors as Spark's columns. */
public final class RootColumns {
  private RootColumns() {}

  /**
   * Returns the columns of all of them, which have as many rows.
   *
   * @param roots vectors whose values were checked to lie inside their buffers, as a decoder does
   */
  public static ColumnarBatch of(VectorSchemaRoot... roots) {
    ColumnVector[] vectors =
        Arrays.stream(roots)
            .flatMap(root -> root.getFieldVectors().stream())
            .map(FlatColumn::of)
            .toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, roots[0].getRowCount());
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
