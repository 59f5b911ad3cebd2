package io.shmring.sidecar;

import io.shmring.Message;
import io.shmring.Range;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Participant;
import io.shmring.Participant.Role;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalLong;

/** A client's view of a sidecar's other processes while it waits for them. */
final class LivenessMonitor {
  /** A worker: its participant, and when it joined. */
  private record Who(int participant, long joined) {}

  /** The request that a worker holds, and since when the client has seen it so. */
  private record Task(OptionalLong hold, long since) {}

  private List<Participant> participants = List.of();
  private Map<Who, Task> tasks = Map.of();

  /** Whether a worker or a supervisor lives. */
  boolean look(Ring ring) {
    long now = System.nanoTime();
    participants = ring.participants().stream().filter(Participant::alive).toList();
    Map<Who, Task> before = tasks;
    tasks = new HashMap<>();
    for (Participant participant : workers()) {
      Task task = before.get(who(participant));
      boolean same = task != null && task.hold.equals(participant.hold());
      tasks.put(who(participant), same ? task : new Task(participant.hold(), now));
    }
    return !tasks.isEmpty() || !named(RequestRing.SUPERVISOR).isEmpty();
  }

  /** A text about what each process was doing when it was last seen, and for how long. */
  String describe(Ring ring) {
    List<String> said = new ArrayList<>();
    workers().forEach(participant -> said.add(describe(participant, ring)));
    for (Participant participant : named(RequestRing.LOADING)) {
      String function = participant.name().substring(RequestRing.LOADING.length());
      said.add(
          String.format(
              "worker %d has been loading %s for %s", participant.pid(), function, ageOf(participant)));
    }
    if (said.isEmpty()) {
      for (Participant participant : named(RequestRing.SUPERVISOR)) {
        said.add(
            String.format(
                "supervisor %d, there for %s, has no worker just now", participant.pid(), ageOf(participant)));
      }
    }
    return String.join("; ", said);
  }

  private List<Participant> workers() {
    return participants.stream().filter(RequestRing::isWorker).toList();
  }

  private List<Participant> named(String name) {
    return participants.stream()
        .filter(participant -> participant.role() == Role.PRODUCER && participant.name().startsWith(name))
        .toList();
  }

  private static Who who(Participant participant) {
    return new Who(participant.index(), participant.joinedNanos());
  }

  private String describe(Participant participant, Ring ring) {
    String worker = String.format("worker %d (%s)", participant.pid(), participant.name());
    Task task = tasks.get(who(participant));
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
      // it was answered just now, or it is not ours
    }
    return "message " + sequence;
  }

  static String ageOf(Participant participant) {
    return age(Math.max(0, System.currentTimeMillis() / 1e3 - participant.joinedNanos() / 1e9));
  }

  private static String age(double seconds) {
    return String.format(Locale.ROOT, seconds >= 10 ? "%.0f s" : "%.1f s", seconds);
  }
}
