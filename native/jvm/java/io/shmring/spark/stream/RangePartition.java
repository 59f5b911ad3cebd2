package io.shmring.spark.stream;

import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.ColumnarPartition;
import io.shmring.spark.read.PlacedPartition;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.TaskRing;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The messages of one ring in a micro-batch.
 *
 * @param place on the driver's host
 * @param dropOldest the stream's branch does not hold the messages
 */
record RangePartition(RingPlace place, long first, long end, boolean dropOldest)
    implements ColumnarPartition, PlacedPartition {
  @Override
  public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
    return new RangeReader(this, plan.options(), new TaskRing(place, plan));
  }
}
