package io.shmring.spark.job;

import java.time.Duration;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;

/** The host of a task, and what a task does if its ring is on another host. */
public final class TaskHost {
  private static final long TRY_MILLIS = 3_000;

  private TaskHost() {}

  /** This host's name for Spark's scheduler. */
  public static String name() {
    return SparkEnv.get().blockManager().blockManagerId().host();
  }

  /**
   * Gives a task on the wrong host back. Spark gives a task to any host as soon as the preferred host
   * has no executor left, so four attempts would fail before an executor is back. A task that is given
   * back does not count as a failure, and does not hide the failure of another attempt.
   *
   * @param advice gets the host's name
   */
  public static RuntimeException elsewhere(
      String ring, String host, long waitMillis, String advice) {
    TaskContext task = TaskContext.get();
    String where =
        String.format(
            "ring \"%s\" is on host %s, and this task runs on %s: ", ring, host, name());
    long tries = (waitMillis + TRY_MILLIS - 1) / TRY_MILLIS;
    if (task.attemptNumber() < tries) {
      TaskWait.sleep(task, Duration.ofMillis(Math.min(waitMillis, TRY_MILLIS)));
      return new TaskKilledException(where + "given back");
    }
    String attempts =
        tries == 0
            ? ""
            : String.format(
                " (attempt %d; the driver's log has the errors of all)", task.attemptNumber() + 1);
    return new IllegalStateException(where + String.format(advice, host) + attempts);
  }
}
