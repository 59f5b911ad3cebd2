package io.shmring.spark;

import java.util.UUID;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The messages of one ring in a micro-batch.
 *
 * @param uuid of the ring that was planned with
 * @param near the driver's host
 * @param mayLapse the stream's branch does not hold the messages
 */
record RangePartition(
    String ring, UUID uuid, String near, long first, long end, boolean mayLapse)
    implements InputPartition {
  private static final long serialVersionUID = 1L;

  @Override
  public String[] preferredLocations() {
    return new String[] {near};
  }
}
