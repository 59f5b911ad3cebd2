package io.shmring.spark;

import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * A partition as the driver keeps it, which counts how often it is sent to an executor.
 *
 * <p>The attempt number that a task knows begins anew with each stage, and Spark runs a stage again
 * under a new number when an executor dies that kept its output. So a task cannot tell by itself
 * that its messages were read and released before.
 */
final class PlannedPartition implements InputPartition {
  private static final long serialVersionUID = 1L;

  private final transient RingPartition partition;
  private final transient AtomicInteger launches = new AtomicInteger();

  PlannedPartition(RingPartition partition) {
    this.partition = partition;
  }

  @Override
  public String[] preferredLocations() {
    return partition.preferredLocations();
  }

  /** Spark serializes the partition with every attempt of its task. */
  private Object writeReplace() {
    return partition.launched(launches.incrementAndGet());
  }
}
