package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.util.Iterator;
import java.util.function.Function;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Gives a function batches with the same rows as the child's batches of columns. */
final class SourceBatches extends Input {
  private final Iterator<ColumnarBatch> batches;
  private final Function<ColumnarBatch, Input> inputs;
  private ColumnarBatch batch; // null before the first batch, and after the last one
  private Input input; // input over this batch

  SourceBatches(Iterator<ColumnarBatch> batches, Function<ColumnarBatch, Input> inputs) {
    this.batches = batches;
    this.inputs = inputs;
  }

  @Override
  boolean hasNext() {
    while (!goesOn()) {
      if (batch != null) {
        batch.closeIfFreeable();
        batch = null;
      }
      if (!batches.hasNext()) {
        return false;
      }
      batch = batches.next();
      input = inputs.apply(batch);
    }
    return true;
  }

  @Override
  boolean goesOn() {
    return batch != null && input.hasNext();
  }

  @Override
  int fill(RootWriter writer, int mostRows) {
    return input.fill(writer, mostRows);
  }

  @Override
  boolean endsBatches() {
    return true;
  }
}
