package io.shmring.spark.read;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** A partition that a task reads as columns. */
public interface ColumnarPartition extends InputPartition {
  /** Begins to read it, in its task. */
  PartitionReader<ColumnarBatch> open(ReadPlan plan);
}
