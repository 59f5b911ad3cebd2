package io.shmring.spark.stream;

import io.shmring.spark.read.ColumnarPartition;
import io.shmring.spark.read.ColumnarReaders;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Opens a partition as rows where it is a real-time batch's, and as columns otherwise. */
record StreamReaders(ColumnarReaders columnar) implements PartitionReaderFactory {
  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return partition instanceof ColumnarPartition;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    return columnar.createColumnarReader(partition);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    return new RealTimeReader((RealTimePartition) partition, columnar.plan());
  }
}
