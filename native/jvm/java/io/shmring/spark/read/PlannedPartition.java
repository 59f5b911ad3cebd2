package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;

/** A partition as the driver keeps it. */
final class PlannedPartition implements PlacedPartition {
  private static final long serialVersionUID = 1L;

  private final transient RingPlace place;
  private final transient RingRead read;

  PlannedPartition(RingPlace place, RingRead read) {
    this.place = place;
    this.read = read;
  }

  @Override
  public RingPlace place() {
    return place;
  }

  /** Spark serializes the partition with every attempt of its task. */
  private Object writeReplace() {
    return read.launch(place);
  }
}
