package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import java.util.UUID;

/**
 * The one read of a ring that a DataFrame has, whichever of its plans it is for: what the tasks of
 * one plan have released, those of another cannot read.
 *
 * <p>It counts how often a task was sent to an executor. The attempt number that a task knows begins
 * anew with each stage, and Spark runs a stage again under a new number when an executor dies that
 * kept its output, or to draw a sample. So a task cannot tell by itself that its messages were read
 * and released before.
 */
final class RingRead {
  private final String id = UUID.randomUUID().toString();
  private long released = -1;
  private long ends = -1;
  private int launches;

  /** Remembers where the branch stood when the plan was made that is run first. */
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
