package io.shmring.spark.job;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.Serializable;
import java.util.List;
import java.util.UUID;
import java.util.function.Function;

/**
 * The ring to which a task attaches: other hosts may have another ring of the same name.
 *
 * @param uuid of the ring, or {@link #UNSEEN}
 * @param host that has it
 */
public record RingPlace(String ring, UUID uuid, String host) implements Serializable {
  /** Stands for the uuid of a ring on another host, which the driver cannot read. */
  static final UUID UNSEEN = new UUID(0, 0);

  public static final long WAIT_MILLIS = 30_000;

  public static RingPlace here(Ring ring) {
    return new RingPlace(ring.name(), ring.info().uuid(), TaskHost.name());
  }

  public static RingPlace on(String host, String ring) {
    return new RingPlace(ring, UNSEEN, host);
  }

  /** The identity of a ring of this host, however its name and host are written. */
  public static Object identity(String host, String ring) {
    return host.equals(TaskHost.name())
        ? RingNames.identity(ring)
        : List.of(host, Ring.path(ring)); // the driver cannot read it
  }

  /**
   * Attaches in a task.
   *
   * @param waitMillis time to wait for an executor on the ring's host, if this task is on another one
   */
  public Ring attach(long waitMillis) {
    return attach(
        Ring::attach,
        waitMillis,
        "let %1$s have an executor with a free core, or let the task wait longer for one:"
            + " .option(\"hostWait\", \"2 minutes\")");
  }

  /** Attaches in a task of a write, only to observe. */
  public Ring attachReadOnly(long waitMillis) {
    return attach(
        Ring::attachReadOnly,
        waitMillis,
        "all tasks of a write run on the driver's host: let the job have executors on %1$s only");
  }

  private Ring attach(Function<String, Ring> attach, long waitMillis, String advice) {
    boolean isAtHost = TaskHost.name().equals(host);
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
          String.format(
              "ring \"%s\" is not the one that was planned with: it was replaced by another one of"
                  + " the same name; load it anew",
              ring));
    }
    throw elsewhere(waitMillis, advice);
  }

  private RuntimeException elsewhere(long waitMillis, String advice) {
    return TaskHost.elsewhere(ring, host, waitMillis, advice);
  }
}
