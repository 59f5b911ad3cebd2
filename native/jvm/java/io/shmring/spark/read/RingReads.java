package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The reads of a DataFrame, which all of its plans share. */
public final class RingReads {
  /** Advice for users whose DataFrame cannot be read twice. */
  public static final String WAYS_OUT =
      "Use .cache() or .localCheckpoint() before a DataFrame is used more than once, load another"
          + " one for the messages that have come since, or give each use a branch of its own";

  private final Map<Key, RingRead> reads = new ConcurrentHashMap<>();

  private record Key(RingPlace place, String branch) {}

  RingRead of(RingPlace place, String branch) {
    return reads.computeIfAbsent(new Key(place, branch), first -> new RingRead());
  }

  /**
   * A DataFrame's read of a ring, which all of its plans share: if tasks of one plan have released
   * messages, tasks of another plan cannot read them.
   *
   * <p>It counts how often a task was sent to an executor. A task's own attempt number begins again
   * with each stage, and Spark runs a stage again, with a new number, if an executor with its
   * output dies, or to draw a sample. So a task alone cannot know that its messages were read and
   * released before.
   */
  static final class RingRead {
    private final String id = UUID.randomUUID().toString();
    private long released = -1;
    private long ends = -1;
    private int launches;

    /** Records the branch's position when the first plan that runs was made. */
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
   * One ring on one host, as one attempt of its task gets it.
   *
   * @param read identifies this read of this ring
   * @param released the branch's released position when the read was planned; -1 if it is unknown
   * @param ends number of ends that the branch had reached then; -1 if it is unknown
   * @param launch 1 for the first attempt, whichever stage runs it
   */
  record RingPartition(RingPlace place, String read, long released, long ends, int launch)
      implements ReadPlan.ColumnarPartition, ReadPlan.PlacedPartition {
    @Override
    public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
      return new BatchReader(this, plan.options(), new TaskRing(place, plan));
    }
  }

  /** A partition as the driver keeps it. */
  static final class PlannedPartition implements ReadPlan.PlacedPartition {
    private final transient RingPlace place;
    private final transient RingReads.RingRead read;

    PlannedPartition(RingPlace place, RingReads.RingRead read) {
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
}
