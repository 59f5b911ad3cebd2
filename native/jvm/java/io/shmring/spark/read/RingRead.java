package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import java.util.UUID;

/**
 * A DataFrame's read of a ring, which all of its plans share: if tasks of one plan have released
 * messages, tasks of another plan cannot read them.
 *
 * <p>It counts how often a task was sent to an executor. A task's own attempt number begins again with
 * each stage, and Spark runs a stage again, with a new number, if an executor with its output dies, or
 * to draw a sample. So a task alone cannot know that its messages were read and released before.
 */
final class RingRead {
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
