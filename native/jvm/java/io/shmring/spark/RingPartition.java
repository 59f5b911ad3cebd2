package io.shmring.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * One ring on one host, as one attempt of its task gets it.
 *
 * @param host that has it; empty: the driver's
 * @param near where a task should rather run: the host, or where the driver is
 * @param read names this read of this ring among all others
 * @param released how far the branch had released when the read was planned; -1 if that is unknown
 * @param launch 1 for the first attempt, whichever stage runs it
 */
record RingPartition(String ring, String host, String near, String read, long released, int launch)
    implements InputPartition {
  private static final long serialVersionUID = 1L;

  RingPartition launched(int number) {
    return new RingPartition(ring, host, near, read, released, number);
  }

  @Override
  public String[] preferredLocations() {
    return near.isEmpty() ? new String[0] : new String[] {near};
  }
}
