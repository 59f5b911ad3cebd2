package io.shmring.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * One ring on one host.
 *
 * @param host that has it; empty: the driver's
 * @param near where a task should rather run: the host, or where the driver is
 * @param released how far the branch had released when the read was planned; -1 if that is unknown
 */
record RingPartition(String ring, String host, String near, long released)
    implements InputPartition {
  private static final long serialVersionUID = 1L;

  @Override
  public String[] preferredLocations() {
    return near.isEmpty() ? new String[0] : new String[] {near};
  }
}
