package io.shmring.spark.columns;

import io.shmring.RingException;
import java.util.List;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Puts ever more rows without columns into a batch, and prints what becomes of it. */
public final class RowsCheck {
  private static final int HALF = 1 << 29;

  private RowsCheck() {}

  public static void main(String[] arguments) {
    ColumnarBatch half = new ColumnarBatch(new ColumnVector[0], HALF);
    try (RootAllocator allocator = new RootAllocator();
        VectorSchemaRoot root = VectorSchemaRoot.create(new Schema(List.of()), allocator)) {
      RootWriter writer = new RootWriter(root);
      writer.copy(half, 0, HALF, 0);
      writer.copy(half, 0, HALF, 0);
      writer.finish();
      System.out.println(root.getRowCount());
      for (int more : new int[] {1, HALF, Integer.MAX_VALUE}) {
        try {
          writer.copy(half, 0, more, 0);
        } catch (RingException error) {
          System.out.println(error.getMessage());
        }
      }
    }
  }
}
