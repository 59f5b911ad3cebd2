package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.job.RingPlace;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** A batch read: one task for each ring and host. */
public final class RingBatch implements Batch {
  private final ReadPlan plan;
  private final ReadOptions options;
  private final RingReads reads;

  /**
   * @param reads of the DataFrame so far
   */
  public RingBatch(ReadPlan plan, RingReads reads) {
    this.plan = plan;
    this.options = plan.options();
    this.reads = reads;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    List<InputPartition> partitions = new ArrayList<>();
    for (String name : options.rings()) {
      if (options.hosts().isEmpty()) {
        partitions.add(planHere(name));
      }
      for (String host : options.hosts()) {
        partitions.add(plan(RingPlace.on(host, name), -1, -1));
      }
    }
    return partitions.toArray(InputPartition[]::new);
  }

  private InputPartition planHere(String name) {
    if (!RingNames.isHere(name)) {
      throw new RingException(
          Status.NOT_FOUND,
          String.format(
              "no ring \"%s\" on this host, the driver's (looked for %s); create it with `shmring"
                  + " create`, or say with .option(\"hosts\", ...) which hosts have it",
              name, Ring.path(name)));
    }
    if (options.branch().isEmpty()) {
      try (Ring ring = Ring.attachReadOnly(name)) {
        return plan(RingPlace.here(ring), -1, -1);
      }
    }
    try (Ring ring = Ring.attach(name)) {
      ring.subscribe(options.branch(), options.branchOptions()); // it holds messages from now on
      Optional<BranchInfo> branch = ring.branch(options.branch());
      return plan(
          RingPlace.here(ring),
          branch.map(BranchInfo::released).orElse(-1L),
          branch.map(BranchInfo::ends).orElse(-1L));
    }
  }

  private InputPartition plan(RingPlace place, long released, long ends) {
    RingReads.RingRead read = reads.of(place, options.branch());
    read.plan(released, ends);
    return new RingReads.PlannedPartition(place, read);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ReadPlan.ColumnarReaders(plan);
  }
}
