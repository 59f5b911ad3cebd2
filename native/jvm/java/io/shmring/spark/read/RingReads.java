package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.job.RingPlace;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The reads of a DataFrame. All plans of the DataFrame share them. */
public final class RingReads {
  private static final Logger LOG = LoggerFactory.getLogger(RingReads.class);

  /** Advice for users whose DataFrame cannot be read twice. */
  public static final String WAYS_OUT =
      "Use .cache() or .localCheckpoint() before a DataFrame is used more than once, load another"
          + " one for the messages that have come since, or give each use a branch of its own";

  private final Map<Key, RingRead> reads = new ConcurrentHashMap<>();

  private record Key(RingPlace place, String branch) {}

  /**
   * Logs a warning if a read is about to make a branch beside others, because the branch's name may
   * be misspelled.
   */
  public static void reportNew(Ring ring, String branch) {
    List<String> others = Internals.branches(ring);
    if (!others.isEmpty() && ring.branch(branch).isEmpty()) {
      LOG.warn(
          "ring \"{}\" had no branch \"{}\" beside \"{}\": making it; if the name is misspelled,"
              + " remove it with `shmring drop-branch`, because it holds back the producers",
          ring.name(), branch, String.join("\", \"", others));
    }
  }

  RingRead of(RingPlace place, String branch) {
    return reads.computeIfAbsent(new Key(place, branch), first -> new RingRead());
  }

  /**
   * A DataFrame's read of a ring. All plans of the DataFrame share it, because tasks of one plan
   * cannot read messages that tasks of another plan have released.
   *
   * <p>The read counts how often a task was sent to an executor. A task's own attempt number is no
   * help: it begins again with each stage of a Spark job, and Spark runs a stage again, under a new
   * number, if an executor with its output dies, or to draw a sample. So a task alone cannot know
   * that its messages were read and released before.
   */
  static final class RingRead {
    private final String id = UUID.randomUUID().toString();
    private long released = -1;
    private long ends = -1;
    private int launches;

    /**
     * Records the branch's position when a plan is made. Does nothing once an attempt has begun:
     * the position from before that attempt shows whether an attempt has released messages.
     */
    synchronized void plan(long released, long ends) {
      if (launches == 0) {
        this.released = released;
        this.ends = ends;
      }
    }

    synchronized RingPartition launch(RingPlace place) {
      launches++;
      return new RingPartition(place, id, released, ends, launches);
    }
  }

  /**
   * One ring on one host, as sent to one attempt of its task.
   *
   * @param read identity of the read of this ring
   * @param released the branch's released position when the read was planned; -1 if unknown
   * @param ends number of end markers that the branch had reached when the read was planned; -1 if
   *     unknown
   * @param launch number of the attempt, whichever stage runs it; 1 for the first one
   */
  record RingPartition(RingPlace place, String read, long released, long ends, int launch)
      implements ReadPlan.ColumnarPartition {
    @Override
    public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
      return new BatchReader(this, plan);
    }
  }

  record PlannedPartition(RingPlace place, RingRead read) implements ReadPlan.PlacedPartition {
    /** Counts an attempt: Spark serializes the partition for every attempt of its task. */
    private Object writeReplace() {
      return read.launch(place);
    }
  }

  /** A batch read: one task for each ring and host. */
  public static final class RingBatch implements Batch {
    private final ReadPlan plan;
    private final ReadOptions options;
    private final RingReads reads;

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
            "no ring \"%s\" on this host, the driver's (looked for %s); create it with `shmring"
                + " create`, or say with .option(\"hosts\", ...) which hosts have it",
            name, Ring.path(name));
      }
      if (options.branch().isEmpty()) {
        try (Ring ring = Ring.attachReadOnly(name)) {
          return plan(RingPlace.here(ring), -1, -1);
        }
      }
      try (Ring ring = Ring.attach(name)) {
        reportNew(ring, options.branch());
        // From now on, the ring keeps new messages until this branch has read them.
        ring.subscribe(options.branch(), options.branchOptions());
        Optional<BranchInfo> branch = ring.branch(options.branch());
        return plan(
            RingPlace.here(ring),
            branch.map(BranchInfo::released).orElse(-1L),
            branch.map(BranchInfo::ends).orElse(-1L));
      }
    }

    private InputPartition plan(RingPlace place, long released, long ends) {
      RingRead read = reads.of(place, options.branch());
      read.plan(released, ends);
      return new PlannedPartition(place, read);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return new ReadPlan.Readers(plan);
    }
  }
}
