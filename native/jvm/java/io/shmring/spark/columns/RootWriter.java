package io.shmring.spark.columns;

import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;

/** Puts rows into vectors. */
public interface RootWriter {
  void write(InternalRow row);

  /** Makes a batch of the rows that were written. */
  void finish();

  /** Begins the next batch, in the same memory. */
  void reset();

  static RootWriter of(VectorSchemaRoot root) {
    return FlatWriter.fits(root) ? new FlatWriter(root) : new Nested(ArrowWriter.create(root));
  }

  /** Spark's own writer: for every type, value by value through Arrow's checks. */
  record Nested(ArrowWriter writer) implements RootWriter {
    @Override
    public void write(InternalRow row) {
      writer.write(row);
    }

    @Override
    public void finish() {
      writer.finish();
    }

    @Override
    public void reset() {
      writer.reset();
    }
  }
}
