package io.shmring.spark.stream;

import io.shmring.spark.job.RingPlace;
import io.shmring.spark.stream.RingOffset.Position;
import org.apache.spark.sql.connector.read.InputPartition;

/** A ring that a task reads from a place on for as long as its batch lasts. */
record RealTimePartition(RingPlace place, Position start) implements InputPartition {
  private static final long serialVersionUID = 1L;

  @Override
  public String[] preferredLocations() {
    return new String[] {place.host()};
  }
}
