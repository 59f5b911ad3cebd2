package io.shmring.exchange;

import io.shmring.Participant.Role;
import io.shmring.Participant;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.exchange.Client.Timeouts;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Collectors;

/**
 * A client's membership in a sidecar's request ring; sidecars/rings.py describes the other
 * participants.
 */
final class RequestRing implements AutoCloseable {
  private static final String SUPERVISOR = "supervisor";
  private static final String LOADING = "loading ";
  private static final String CLIENT = "client";
  private static final String MOVED = "moved ";

  /**
   * Number of seats that clients leave free, because a worker that replaces a dead one must find a
   * free seat. In a ring with few seats, clients leave an eighth of all seats free instead.
   */
  private static final int FOR_WORKERS = 16;

  private static final long PAUSE_MILLIS = 50;
  private static final long LONGEST_PAUSE_MILLIS = 1000;

  final Ring ring;
  final Producer producer;

  private RequestRing(Ring ring, Producer producer) {
    this.ring = ring;
    this.producer = producer;
  }

  static String name(String sidecar) {
    return "sidecar." + sidecar;
  }

  /**
   * Joins the sidecar's request ring as a client, without waiting.
   *
   * @throws RingException NOT_FOUND if there is no sidecar of this name, LIMIT if it has no room
   *     left
   */
  private static RequestRing enter(String sidecar) {
    Ring ring = Ring.attach(name(sidecar));
    try {
      Producer producer = ring.producer(CLIENT);
      int most = ring.info().participants();
      if (ring.participants().size() > most - Math.min(FOR_WORKERS, most / 8)) {
        producer.close();
        throw new RingException(
            Status.LIMIT, "sidecar \"%s\": the room that is left is for workers", sidecar);
      }
      return new RequestRing(ring, producer);
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  /**
   * Joins the sidecar's request ring as a client, at once or as soon as the sidecar has started and
   * has room.
   *
   * @throws FunctionException if there is no sidecar of this name, or it has no room for this
   *     client
   */
  static RequestRing await(String sidecar, Timeouts timeouts, Runnable taskCheck)
      throws InterruptedException {
    long begun = System.nanoTime();
    long pause = PAUSE_MILLIS;
    while (true) {
      taskCheck.run();
      long waited = System.nanoTime() - begun;
      try {
        return enter(sidecar);
      } catch (RingException error) {
        if (error.status() != Status.NOT_FOUND && error.status() != Status.LIMIT) {
          throw error;
        }
        boolean full = error.status() == Status.LIMIT;
        if (waited >= Timeouts.nanos(full ? timeouts.timeout() : timeouts.connectTimeout())) {
          throw new FunctionException(
              "%s", full ? noRoom(sidecar, timeouts) : nobody(sidecar, timeouts));
        }
        Thread.sleep(ThreadLocalRandom.current().nextLong(pause / 2, pause + 1));
        pause = full ? Math.min(2 * pause, LONGEST_PAUSE_MILLIS) : PAUSE_MILLIS;
      }
    }
  }

  private static String nobody(String sidecar, Timeouts timeouts) {
    return String.format(
        "no sidecar \"%s\" on this host (waited %s s, connect_timeout=..., and it did not start);"
            + " `shmring ls` lists those that are there; start it with `shmring sidecar module:function"
            + " --name %s`, or see in the log of what should have started it why it is not there",
        sidecar, Timeouts.text(timeouts.connectTimeout()), sidecar);
  }

  private static String noRoom(String sidecar, Timeouts timeouts) {
    return String.format(
        "sidecar \"%s\" has had no room for another client for %s s: `shmring stat %s` shows who takes"
            + " part; let fewer tasks run at a time on a host, share their work between sidecars of"
            + " several names, or wait longer (timeout=...)",
        sidecar, Timeouts.text(timeouts.timeout()), name(sidecar));
  }

  /**
   * Returns whether the ring that now has the sidecar's name is this ring; empty if there is no
   * ring of that name.
   */
  Optional<Boolean> isCurrent() {
    try (Ring found = Ring.attachReadOnly(ring.name())) {
      return Optional.of(found.info().uuid().equals(ring.info().uuid()));
    } catch (RingException error) {
      return Optional.empty();
    }
  }

  /**
   * Returns the functions that the sidecar's workers serve, from the workers' names in the ring.
   */
  String functions() {
    String names =
        ring.participants().stream()
            .filter(RequestRing::isWorker)
            .map(Participant::name)
            .distinct()
            .sorted()
            .collect(Collectors.joining(" or "));
    return names.isEmpty() ? "the function" : names;
  }

  private static boolean isWorker(Participant participant) {
    return participant.alive() && participant.role() == Role.CONSUMER;
  }

  /** Returns whether a worker or the supervisor of the sidecar lives. */
  boolean isServed() {
    return ring.participants().stream()
        .anyMatch(each -> isWorker(each) || each.alive() && each.name().startsWith(SUPERVISOR));
  }

  /** Describes what each of the sidecar's processes does, and for how long. */
  String describe() {
    List<String> said = new ArrayList<>();
    List<Participant> all = ring.participants();
    for (Participant each : all) {
      long pid = each.pid();
      if (isWorker(each)) {
        said.add(String.format("worker %d serves %s, and %s", pid, each.name(), doing(each, all)));
      } else if (each.alive() && each.name().startsWith(LOADING)) {
        String function = each.name().substring(LOADING.length());
        String age = age(each.joinedNanos());
        said.add(String.format("worker %d has been loading %s for %s", pid, function, age));
      }
    }
    return said.isEmpty() ? "its supervisor has no worker just now" : String.join("; ", said);
  }

  /**
   * Describes what a worker does. If the worker has moved its request out of the ring, a second
   * participant of the same process has the request in its name.
   */
  private static String doing(Participant worker, List<Participant> all) {
    Optional<Participant> moved =
        all.stream()
            .filter(each -> each.alive() && each.pid() == worker.pid())
            .filter(each -> each.name().startsWith(MOVED))
            .findFirst();
    if (moved.isPresent()) {
      String request = moved.get().name().substring(MOVED.length());
      return String.format("has been at %s for more than %s", request, age(moved.get().joinedNanos()));
    }
    return worker.hold().isPresent()
        ? "is at message " + worker.hold().getAsLong()
        : "waits for requests";
  }

  private static String age(long nanos) {
    double seconds = Math.max(0, System.currentTimeMillis() / 1e3 - nanos / 1e9);
    return String.format(Locale.ROOT, seconds >= 10 ? "%.0f s" : "%.1f s", seconds);
  }

  @Override
  public void close() {
    producer.close();
    ring.close();
  }
}
