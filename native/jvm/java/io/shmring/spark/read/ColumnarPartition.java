package io.shmring.spark.read;

import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A partition that a task reads as columns. */
public interface ColumnarPartition extends PlacedPartition {
  /** Begins to read it, in its task. */
  PartitionReader<ColumnarBatch> open(ReadPlan plan);
}
