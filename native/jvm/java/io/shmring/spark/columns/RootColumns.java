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
   * @param root whose values were found to lie inside its buffers, as a decoder's are
   */
  public static ColumnarBatch of(VectorSchemaRoot root) {
    return of(root, IntStream.range(0, root.getFieldVectors().size()).toArray());
  }

  /**
   * Some of its columns.
   *
   * @param places of them, in their order
   */
  public static ColumnarBatch of(VectorSchemaRoot root, int[] places) {
    ColumnVector[] vectors =
        Arrays.stream(places)
            .mapToObj(place -> FlatColumn.of(root.getVector(place)))
            .toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, root.getRowCount());
  }
}
