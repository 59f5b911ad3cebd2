package io.shmring.spark.stream;

import io.shmring.spark.job.RingPlace;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The messages of one ring in a micro-batch.
 *
 * @param place on the driver's host
 * @param mayLapse the stream's branch does not hold the messages
 */
record RangePartition(RingPlace place, long first, long end, boolean mayLapse)
    implements InputPartition {
  private static final long serialVersionUID = 1L;

  @Override
  public String[] preferredLocations() {
    return new String[] {place.host()};
  }
}
