package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * One ring on one host, as one attempt of its task gets it.
 *
 * @param read identifies this read of this ring
 * @param released the branch's released position when the read was planned; -1 if it is unknown
 * @param ends number of ends that the branch had reached then; -1 if it is unknown
 * @param launch 1 for the first attempt, whichever stage runs it
 */
record RingPartition(RingPlace place, String read, long released, long ends, int launch)
    implements ColumnarPartition, PlacedPartition {
  @Override
  public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
    return new BatchReader(this, plan.options(), new TaskRing(place, plan));
  }
}
