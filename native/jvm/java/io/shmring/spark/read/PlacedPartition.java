package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import org.apache.spark.sql.connector.read.InputPartition;

/** A partition that is read on the host of its ring. */
public interface PlacedPartition extends InputPartition {
  RingPlace place();

  @Override
  default String[] preferredLocations() {
    return new String[] {place().host()};
  }
}
