package io.shmring.sidecar;

import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Participant;
import io.shmring.Participant.Role;
import io.shmring.Status;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;

/** A client in a sidecar's request ring; sidecars/participants.py describes the other participants. */
final class RequestRing implements AutoCloseable {
  static final String SUPERVISOR = "supervisor";
  static final String LOADING = "loading ";
  private static final String CLIENT = "client";
  private static final String FILES = "shmring.sidecar.*";

  /** Clients leave so many places free, or an eighth: a new worker must find one. */
  private static final int FOR_WORKERS = 16;

  private static final int NAMED = 5;

  private final Ring ring;
  private final Producer producer;

  private RequestRing(Ring ring, Producer producer) {
    this.ring = ring;
    this.producer = producer;
  }

  static String name(String sidecar) {
    return "sidecar." + sidecar;
  }

  /**
   * Joins as a client, without waiting.
   *
   * @throws RingException NOT_FOUND if there is no such sidecar, LIMIT if it has no room left
   */
  static RequestRing enter(String sidecar) {
    Ring ring = Ring.attach(name(sidecar));
    try {
      Producer producer = ring.producer(CLIENT);
      int most = ring.info().participants();
      if (ring.participants().size() > most - Math.min(FOR_WORKERS, most / 8)) {
        throw new RingException(
            Status.LIMIT,
            String.format("sidecar \"%s\": the room that is left is for workers", sidecar));
      }
      return new RequestRing(ring, producer);
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  Ring ring() {
    return ring;
  }

  Producer producer() {
    return producer;
  }

  /** Whether the ring with the sidecar's name is another one now; false if there is none. */
  boolean wasReplaced() {
    try (Ring found = Ring.attachReadOnly(ring.name())) {
      return !found.info().uuid().equals(ring.info().uuid());
    } catch (RingException error) {
      if (error.status() == Status.NOT_FOUND) {
        return false;
      }
      throw error;
    }
  }

  /** Whether the ring with the sidecar's name is this one. */
  boolean isCurrent() {
    try (Ring found = Ring.attachReadOnly(ring.name())) {
      return found.info().uuid().equals(ring.info().uuid());
    } catch (RingException error) {
      return false;
    }
  }

  /** A text about the participants of a sidecar's request ring. */
  static String crowd(String sidecar) {
    List<Participant> participants;
    try (Ring ring = Ring.attachReadOnly(name(sidecar))) {
      participants = ring.participants();
    } catch (RingException error) {
      return error.getMessage();
    }
    List<Participant> clients =
        participants.stream()
            .filter(participant -> participant.alive() && participant.name().equals(CLIENT))
            .sorted(Comparator.comparingLong(Participant::joinedNanos))
            .toList();
    long workers = participants.stream().filter(RequestRing::isWorker).count();
    String longest =
        clients.stream()
            .limit(NAMED)
            .map(participant -> participant.pid() + " for " + LivenessMonitor.ageOf(participant))
            .collect(Collectors.joining(", "));
    return String.format(
        "%d clients and %d workers have them; the clients that have been there longest are the"
            + " processes %s",
        clients.size(), workers, longest);
  }

  /** A text about the sidecars on this host. */
  static String others() {
    List<String> names = new ArrayList<>();
    try (DirectoryStream<Path> files =
        Files.newDirectoryStream(Path.of(Ring.PREFIX).getParent(), FILES)) {
      for (Path file : files) {
        String name = file.getFileName().toString().substring(FILES.length() - 1);
        if (isServed(name)) {
          names.add('"' + name + '"');
        }
      }
    } catch (IOException error) {
      return error.toString();
    }
    names.sort(null);
    return names.isEmpty() ? "there is none at all" : "there are " + String.join(", ", names);
  }

  private static boolean isServed(String sidecar) {
    try (Ring ring = Ring.attachReadOnly(name(sidecar))) {
      return new LivenessMonitor().look(ring);
    } catch (RingException error) {
      return false;
    }
  }

  /** The functions that a sidecar's workers serve, as their names in the ring say. */
  static String functions(String sidecar) {
    String names = "";
    try (Ring ring = Ring.attachReadOnly(name(sidecar))) {
      names =
          ring.participants().stream()
              .filter(RequestRing::isWorker)
              .map(Participant::name)
              .distinct()
              .sorted()
              .collect(Collectors.joining(" or "));
    } catch (RingException error) {
      // it is gone: the functions are unknown
    }
    return names.isEmpty() ? "the function" : names;
  }

  static boolean isWorker(Participant participant) {
    return participant.alive() && participant.role() == Role.CONSUMER;
  }

  /** Leaves the ring, and closes the producer. */
  @Override
  public void close() {
    producer.close();
    ring.close();
  }
}
