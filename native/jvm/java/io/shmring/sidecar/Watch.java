package io.shmring.sidecar;

import io.shmring.Message;
import io.shmring.Range;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Seat;
import io.shmring.Seat.Role;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalLong;

/** What a client sees of a sidecar's other processes while it waits for them. */
final class Watch {
  /** A worker: its seat, and when it took that. */
  private record Who(int seat, long joined) {}

  /** What a worker holds, and since when it was seen at that. */
  private record Task(OptionalLong hold, long since) {}

  private List<Seat> seats = List.of();
  private Map<Who, Task> tasks = Map.of();

  /** Whether a worker or a supervisor lives. */
  boolean look(Ring ring) {
    long now = System.nanoTime();
    seats = ring.seats().stream().filter(Seat::alive).toList();
    Map<Who, Task> before = tasks;
    tasks = new HashMap<>();
    for (Seat seat : workers()) {
      Task task = before.get(who(seat));
      boolean same = task != null && task.hold.equals(seat.hold());
      tasks.put(who(seat), same ? task : new Task(seat.hold(), now));
    }
    return !tasks.isEmpty() || !named(RequestRing.SUPERVISOR).isEmpty();
  }

  /** What each process was at when they were looked at, and for how long. */
  String describe(Ring ring) {
    List<String> said = new ArrayList<>();
    workers().forEach(seat -> said.add(describe(seat, ring)));
    for (Seat seat : named(RequestRing.LOADING)) {
      String function = seat.name().substring(RequestRing.LOADING.length());
      said.add(
          String.format(
              "worker %d has been loading %s for %s", seat.pid(), function, ageOf(seat)));
    }
    if (said.isEmpty()) {
      for (Seat seat : named(RequestRing.SUPERVISOR)) {
        said.add(
            String.format(
                "supervisor %d, there for %s, has no worker just now", seat.pid(), ageOf(seat)));
      }
    }
    return String.join("; ", said);
  }

  private List<Seat> workers() {
    return seats.stream().filter(RequestRing::isWorker).toList();
  }

  private List<Seat> named(String name) {
    return seats.stream()
        .filter(seat -> seat.role() == Role.PRODUCER && seat.name().startsWith(name))
        .toList();
  }

  private static Who who(Seat seat) {
    return new Who(seat.index(), seat.joinedNanos());
  }

  private String describe(Seat seat, Ring ring) {
    String worker = String.format("worker %d (%s)", seat.pid(), seat.name());
    Task task = tasks.get(who(seat));
    String age = age((System.nanoTime() - task.since) / 1e9);
    if (task.hold.isEmpty()) {
      return String.format("%s has waited for requests for at least %s", worker, age);
    }
    return String.format(
        "%s has been at %s for at least %s", worker, request(ring, task.hold.getAsLong()), age);
  }

  private static String request(Ring ring, long sequence) {
    try (Range range = ring.range(sequence, ring.claimed())) {
      Iterator<Message> messages = range.iterator();
      if (messages.hasNext()) {
        Message message = messages.next();
        String text = Head.of(message, ring.name()).describe();
        range.confirm(message.id());
        if (message.id() == sequence) {
          return text;
        }
      }
    } catch (RingException error) {
      // it was answered just now, or is none of ours
    }
    return "message " + sequence;
  }

  static String ageOf(Seat seat) {
    return age(Math.max(0, System.currentTimeMillis() / 1e3 - seat.joinedNanos() / 1e9));
  }

  private static String age(double seconds) {
    return String.format(Locale.ROOT, seconds >= 10 ? "%.0f s" : "%.1f s", seconds);
  }
}
