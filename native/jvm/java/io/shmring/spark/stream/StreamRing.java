package io.shmring.spark.stream;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.OwnBranch;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.stream.RingOffset.Position;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;

/**
 * A stream's place in one ring, kept by the driver: an exclusive branch that stands where the last
 * committed batch ended. It holds all that comes behind, so that the tasks read without taking, and
 * a driver that dies leaves nothing but the branch where it stood.
 */
final class StreamRing implements AutoCloseable {
  private static final String WHO = "spark stream";
  private static final int JOIN_ATTEMPTS = 100;
  private static final Duration JOIN_PAUSE = Duration.ofMillis(100);

  private final String name;
  private final String branch;
  private final Ring ring;
  private final Consumer consumer;
  private final boolean mayLapse;
  private final long lowest;
  private long target = Long.MAX_VALUE;

  /**
   * @param start where the stream goes on; empty if it begins
   */
  StreamRing(String name, String branch, Optional<Position> start, ReadOptions options) {
    this.name = name;
    this.branch = branch;
    this.ring = Ring.attach(name);
    try {
      BranchOptions begin =
          start
              .filter(position -> position.uuid().equals(uuid()))
              .map(position -> BranchOptions.at(position.sequence()))
              .orElse(start.isPresent() ? BranchOptions.EARLIEST : options.branchOptions());
      this.consumer = join(begin.asExclusive());
      consumer.takeEnds(); // they are stepped over
      BranchInfo info = ring.branch(branch).orElseThrow();
      this.mayLapse = info.mayLapse();
      this.lowest = info.position();
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  /** A query that was stopped just now may take a moment to leave. */
  private Consumer join(BranchOptions begin) {
    for (int attempt = 1; ; attempt++) {
      try {
        return ring.consumer(branch, begin, WHO);
      } catch (RingException error) {
        if (error.status() != Status.SECOND_MEMBER || attempt == JOIN_ATTEMPTS) {
          throw error;
        }
        LockSupport.parkNanos(JOIN_PAUSE.toNanos());
      }
    }
  }

  /** What is wrong with going on at `start`; empty if nothing is lost. */
  Optional<String> loss(Position start) {
    if (!start.uuid().equals(uuid())) {
      return Optional.of(
          String.format(
              "ring \"%s\" was replaced by another one of the same name (%s, not %s)",
              name, uuid(), start.uuid()));
    }
    if (start.sequence() < lowest()) {
      return Optional.of(
          String.format(
              "ring \"%s\": the messages %d to %d are gone",
              name, start.sequence(), lowest() - 1));
    }
    return Optional.empty();
  }

  private long lowest() {
    return mayLapse ? Math.max(lowest, ring.floor()) : lowest;
  }

  boolean mayLapse() {
    return mayLapse;
  }

  /** Where a new stream begins. */
  Position begin() {
    return new Position(uuid(), lowest);
  }

  /** The end of what can be read, at most the target of a stream that reads what is there. */
  long available() {
    ring.recover();
    if (!mayLapse) {
      return Math.min(consumer.available(), target);
    }
    try (OwnBranch own = own(lowest)) { // the stream's branch may stand far behind
      return Math.min(own.consumer().available(), target);
    }
  }

  void stopHere() {
    target = Math.min(target, available());
  }

  /** The end of the next batch. */
  Position next(Position start, long maxMessages, long maxSlots) {
    long from = start.in(uuid(), lowest);
    long limit = available();
    if (!mayLapse) {
      return next(from, limit, maxMessages, maxSlots);
    }
    try (OwnBranch own = own(from)) {
      return next(own.first(), limit, maxMessages, maxSlots);
    }
  }

  /** Holds for a moment what the stream's branch may lose. */
  private OwnBranch own(long from) {
    return new OwnBranch(ring, BranchOptions.at(from), WHO);
  }

  private Position next(long from, long limit, long maxMessages, long maxSlots) {
    long end = from;
    while (end < limit && maxMessages > 0 && (end == from || end - from < maxSlots)) {
      int most = (int) Math.min(maxMessages, Integer.MAX_VALUE);
      Ring.Reach reach = ring.measure(end, limit, most, maxSlots - (end - from));
      if (reach.messages() == 0 || (end > from && reach.end() - from > maxSlots)) {
        break;
      }
      checkSize(end, reach, maxSlots);
      end = reach.end();
      maxMessages -= reach.messages();
    }
    return new Position(uuid(), end);
  }

  /** A message that leaves no room for the next one would end the stream for good. */
  private void checkSize(long first, Ring.Reach reach, long maxSlots) {
    long slots = reach.end() - first;
    if (maxSlots < Long.MAX_VALUE && reach.messages() == 1 && slots > ring.info().slots() / 2) {
      throw new RingException(
          Status.TOO_LARGE,
          String.format(
              "ring \"%s\": message %d takes %d of %d slots, and Spark releases it only when the"
                  + " next one is there, for which there is no room; create the ring with more"
                  + " slots",
              name, first, slots, ring.info().slots()));
    }
  }

  RangePartition partition(Position start, Position end) {
    if (start.rows() > 0) {
      throw new IllegalStateException(
          String.format(
              "ring \"%s\": the last real-time batch ended %d rows inside message %d; go on in"
                  + " real-time mode",
              name, start.rows(), start.sequence()));
    }
    long first = start.in(uuid(), lowest);
    long last = end.uuid().equals(uuid()) ? Math.max(end.sequence(), first) : first;
    return new RangePartition(RingPlace.here(ring), first, last, mayLapse);
  }

  RealTimePartition realTime(Optional<Position> start) {
    return new RealTimePartition(
        RingPlace.here(ring), start.filter(this::isHere).orElseGet(this::begin));
  }

  private boolean isHere(Position position) {
    return position.uuid().equals(uuid()) && position.sequence() >= lowest;
  }

  void commit(Position end) throws InterruptedException {
    if (end.uuid().equals(uuid())) {
      consumer.advance(branch, end.sequence());
    }
  }

  UUID uuid() {
    return ring.info().uuid();
  }

  Ring ring() {
    return ring;
  }

  long slots() {
    return ring.info().slots();
  }

  @Override
  public void close() {
    consumer.close();
    ring.close();
  }
}
