package io.shmring.spark.job;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.Serializable;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.function.Function;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;

/**
 * The ring to which a task attaches. Other hosts may have another ring of the same name.
 *
 * @param uuid identity of the ring, or {@link #UNSEEN}
 * @param host host that has the ring
 */
public record RingPlace(String ring, UUID uuid, String host) implements Serializable {
  /** Stands for the uuid of a ring on another host, because the driver cannot read that uuid. */
  static final UUID UNSEEN = new UUID(0, 0);

  public static final long WAIT_MILLIS = 30_000;
  private static final long TRY_MILLIS = 3_000;

  public static RingPlace here(Ring ring) {
    return new RingPlace(ring.name(), ring.info().uuid(), thisHost());
  }

  public static RingPlace on(String host, String ring) {
    return new RingPlace(ring, UNSEEN, host);
  }

  /** Returns the identity of a ring on a host, however their names are written. */
  public static Object identity(String host, String ring) {
    return host.equals(thisHost())
        ? RingNames.identity(ring)
        : List.of(host, Ring.path(ring).normalize()); // another host's links are not known here
  }

  /**
   * Attaches to the ring in a task.
   *
   * @param waitMillis time to wait for an executor on the ring's host, if the task is on another
   *     host
   */
  public Ring attach(long waitMillis) {
    return attach(
        Ring::attach,
        waitMillis,
        "let %1$s have an executor with a free core, or let the task wait longer for one:"
            + " .option(\"hostWait\", \"2 minutes\")");
  }

  /** Attaches to the ring in a task of a write, only to observe it. */
  public Ring attachReadOnly(long waitMillis) {
    return attach(
        Ring::attachReadOnly,
        waitMillis,
        "all tasks of a write run on the driver's host: let the job have executors on %1$s only");
  }

  private Ring attach(Function<String, Ring> attach, long waitMillis, String advice) {
    boolean isAtHost = thisHost().equals(host);
    if (uuid.equals(UNSEEN) && !isAtHost) {
      throw elsewhere(waitMillis, advice);
    }
    Ring found;
    try {
      found = attach.apply(ring);
    } catch (RingException error) {
      throw isAtHost ? error : elsewhere(waitMillis, advice);
    }
    if (uuid.equals(UNSEEN) || uuid.equals(found.info().uuid())) {
      return found;
    }
    found.close();
    if (isAtHost) {
      throw new RingException(
          Status.NOT_FOUND,
          "ring \"%s\" is not the one that was planned with: it was replaced by another one of the"
              + " same name; load it anew",
          ring);
    }
    throw elsewhere(waitMillis, advice);
  }

  /**
   * Returns the error for a task on the wrong host. Until `waitMillis` have passed, the error gives
   * the task back to Spark's scheduler, which starts it again. Spark neither counts
   * this as a failure, nor shows it instead of another attempt's failure. Counted failures would
   * reach the allowed number (four) before an executor is back, because Spark sends a task to any
   * host as soon as the ring's host has no executor left.
   *
   * @param advice format of the advice; its argument is the host's name
   */
  private RuntimeException elsewhere(long waitMillis, String advice) {
    TaskContext task = TaskContext.get();
    String where =
        String.format(
            "ring \"%s\" is on host %s, and this task runs on %s: ", ring, host, thisHost());
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

  /** Returns the name of this host in Spark's scheduler. */
  private static String thisHost() {
    return SparkEnv.get().blockManager().blockManagerId().host();
  }

  /** Pauses a task until a time is over or Spark ends the task. */
  public static final class TaskWait {
    private static final Duration LOOK = Duration.ofMillis(50);

    private TaskWait() {}

    /** Sleeps for 50 ms; throws if Spark has ended the task. */
    public static void pause(TaskContext task) {
      try {
        Thread.sleep(LOOK.toMillis());
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
        throw new TaskKilledException("interrupted while it waited");
      }
      if (task.isInterrupted()) {
        throw new TaskKilledException("ended while it waited");
      }
    }

    public static void sleep(TaskContext task, Duration duration) {
      long deadline = System.nanoTime() + duration.toNanos();
      while (System.nanoTime() - deadline < 0) {
        pause(task);
      }
    }
  }
}
