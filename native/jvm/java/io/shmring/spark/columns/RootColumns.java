package io.shmring.spark.columns;

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
    ColumnVector[] vectors =
        root.getFieldVectors().stream().map(FlatColumn::of).toArray(ColumnVector[]::new);
    return new ColumnarBatch(vectors, root.getRowCount());
  }
}
