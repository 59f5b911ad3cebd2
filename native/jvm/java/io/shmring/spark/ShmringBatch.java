package io.shmring.spark;

import io.shmring.BranchInfo;
import io.shmring.Ring;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** A batch read: a task per ring and host. */
final class ShmringBatch implements Batch {
  private final StructType schema;
  private final int[] columns;
  private final ReadOptions options;

  ShmringBatch(StructType schema, int[] columns, ReadOptions options) {
    this.schema = schema;
    this.columns = columns;
    this.options = options;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    List<InputPartition> partitions = new ArrayList<>();
    for (String name : options.rings()) {
      if (options.hosts().isEmpty()) {
        partitions.add(planned(name, "", Hosts.here(), plan(name)));
      }
      for (String host : options.hosts()) {
        partitions.add(planned(name, host, host, -1));
      }
    }
    return partitions.toArray(InputPartition[]::new);
  }

  private static InputPartition planned(String ring, String host, String near, long released) {
    String read = UUID.randomUUID().toString();
    return new PlannedPartition(new RingPartition(ring, host, near, read, released, 0));
  }

  /** Makes the branch, so that it holds messages from now on, and looks where it stands. */
  private long plan(String name) {
    if (options.branch().isEmpty()) {
      return -1;
    }
    try (Ring ring = Ring.attach(name)) {
      ring.subscribe(options.branch(), options.branchOptions());
      return ring.branch(options.branch()).map(BranchInfo::released).orElse(-1L);
    }
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new BatchReaderFactory(schema, columns, options);
  }
}
