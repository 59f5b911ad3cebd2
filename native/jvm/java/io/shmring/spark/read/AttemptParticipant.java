package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.TaskWait;
import java.time.Duration;
import org.apache.spark.TaskContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A lock that one attempt of a read has at a time. Without it, two attempts (a speculative one, or one
 * that was started while a lost one still runs) would share the branch's messages, and each would miss
 * those of the other.
 *
 * <p>The lock is the only consumer's place in a branch that nobody reads. The ring gives it to one
 * attempt of any process, and takes it back when that process dies.
 */
final class AttemptParticipant {
  private static final Logger LOG = LoggerFactory.getLogger(AttemptParticipant.class);
  private static final BranchOptions PLACE =
      BranchOptions.LATEST.asExclusive().asEphemeral().asDropOldest();
  private static final Duration UNTIL_SPARK_KILLS = Duration.ofSeconds(10);

  private final Ring ring;
  private final RingPartition partition;
  private final ReadOptions options;
  private final TaskContext task;
  private boolean waited;

  AttemptParticipant(Ring ring, RingPartition partition, ReadOptions options, TaskContext task) {
    this.ring = ring;
    this.partition = partition;
    this.options = options;
    this.task = task;
  }

  /**
   * Waits until another attempt ends, as long as it lives: Spark ends the wait when the other attempt
   * has succeeded. If it has failed, its messages are there again.
   *
   * @throws IllegalStateException if some of this attempt's messages were released before
   */
  Consumer take() {
    Consumer participant = join();
    try {
      if (isIncomplete()) {
        awaitKill();
        throw incomplete();
      }
      return participant;
    } catch (RuntimeException error) {
      participant.close();
      throw error;
    }
  }

  private Consumer join() {
    while (true) {
      try {
        return ring.consumer(
            "spark-read-" + partition.read(), PLACE, "spark attempt " + task.taskAttemptId());
      } catch (RingException error) {
        if (error.status() != Status.SECOND_CONSUMER) {
          throw error;
        }
      }
      if (!waited) {
        LOG.info(
            "ring \"{}\": another attempt of this task reads branch \"{}\"; waiting for its end",
            ring.name(),
            options.branch());
      }
      waited = true;
      TaskWait.pause(task);
    }
  }

  /** Fails if an earlier attempt has released messages: they cannot be read again. */
  private boolean isIncomplete() {
    if (partition.launch() == 1) {
      return false;
    }
    if (partition.released() >= 0) {
      return released() > partition.released();
    }
    return isRunAgain() || !options.releaseAtEnd();
  }

  /** Ends this attempt after another one has succeeded: Spark is about to end it, without counting it. */
  private void awaitKill() {
    if (waited || (task.attemptNumber() > 0 && !isRunAgain())) {
      TaskWait.sleep(task, UNTIL_SPARK_KILLS);
    }
  }

  /** Whether another stage, of this plan or of another one, has run this task before. */
  private boolean isRunAgain() {
    return partition.launch() > task.attemptNumber() + 1;
  }

  private IllegalStateException incomplete() {
    String moved =
        partition.released() < 0
            ? "may have moved on"
            : String.format("has moved on from %d to %d", partition.released(), released());
    return new IllegalStateException(
        String.format(
            "ring \"%s\": branch \"%s\" %s since this DataFrame was first run, and this is"
                + " attempt %d:"
                + " rows would be missing from its result. %s%s",
            ring.name(),
            options.branch(),
            moved,
            partition.launch(),
            RingReads.WAYS_OUT,
            options.releaseAtEnd() ? "" : ", or read it with .option(\"release\", \"task\")"));
  }

  private long released() {
    return ring.branch(options.branch()).map(BranchInfo::released).orElse(Long.MAX_VALUE);
  }
}
