package io.shmring.spark.stream;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.RingReader;
import io.shmring.spark.read.RingReads;
import io.shmring.spark.stream.RingOffset.Position;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * A stream's position in one ring: the end of the last committed batch. The driver has joined an
 * exclusive branch at this position. The ring keeps all later messages for this branch, unless the
 * branch drops its oldest messages, so the tasks read them without taking them. If the driver dies,
 * the branch stays where it is.
 */
final class StreamRing implements AutoCloseable {
  private static final String WHO = "spark stream";
  private static final int JOIN_ATTEMPTS = 100;
  private static final Duration JOIN_PAUSE = Duration.ofMillis(100);

  final Ring ring;
  private final Consumer consumer;
  final boolean dropOldest;
  private final long lowest;
  private long target = Long.MAX_VALUE;

  /**
   * @param start position where the stream continues; empty if it is new
   */
  StreamRing(String name, String branch, Optional<Position> start, ReadOptions options) {
    this.ring = Ring.attach(name);
    try {
      if (branch.equals(options.branch())) {
        RingReads.reportNew(ring, branch);
      }
      BranchOptions begin =
          start
              .filter(position -> position.uuid().equals(uuid()))
              .map(position -> BranchOptions.at(position.sequence()))
              .orElse(start.isPresent() ? BranchOptions.EARLIEST : options.branchOptions());
      this.consumer = join(branch, begin.asExclusive());
      Internals.takeEnds(consumer); // end markers come as messages, and a commit releases them
      BranchInfo info = ring.branch(branch).orElseThrow();
      this.dropOldest = info.dropOldest();
      this.lowest = info.position();
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  /** Joins the branch. Waits if a query that was stopped just now has not left the branch yet. */
  private Consumer join(String branch, BranchOptions begin) {
    for (int attempt = 1; ; attempt++) {
      try {
        return ring.consumer(branch, begin, WHO);
      } catch (RingException error) {
        if (error.status() != Status.SECOND_CONSUMER || attempt == JOIN_ATTEMPTS) {
          throw error;
        }
        LockSupport.parkNanos(JOIN_PAUSE.toNanos());
      }
    }
  }

  /** Describes the messages that are lost if the stream continues at `start`; empty if none are. */
  Optional<String> loss(Position start) {
    if (!isOurs(start)) {
      return Optional.of(replaced(start));
    }
    return start.sequence() >= lowest()
        ? Optional.empty()
        : Optional.of(
            String.format(
                "ring \"%s\": the messages %d to %d are gone",
                ring.name(), start.sequence(), lowest() - 1));
  }

  /**
   * Returns whether a stream can continue in this ring at a position. It can if the position was
   * taken in this ring. It also can if this ring was restored from a journal and the position lies
   * at or before the ring's beginning: a restored ring goes on with the journal's sequences.
   */
  private boolean isOurs(Position position) {
    long first = ring.info().firstSequence(); // 0 unless the ring was restored
    return position.uuid().equals(uuid()) || (first > 0 && position.sequence() <= first);
  }

  private String replaced(Position position) {
    return String.format(
        "ring \"%s\" was replaced by another one of the same name (%s, not %s)",
        ring.name(), uuid(), position.uuid());
  }

  /** Returns the sequence below which messages are lost. */
  private long lowest() {
    return dropOldest ? Math.max(lowest, ring.floor()) : lowest;
  }

  /** Returns the position where a new stream begins. */
  Position begin() {
    return new Position(uuid(), lowest);
  }

  /**
   * Returns the end of the readable messages. For a stream that reads only the messages available
   * at its start, the end stays at most where it was then.
   */
  long available() {
    ring.recover();
    return Math.min(inRing(), target);
  }

  private long inRing() {
    if (!dropOldest) {
      return consumer.available();
    }
    // Ask a new branch, which begins after the overwritten messages: the stream's own branch may
    // still stand before them.
    try (Consumer own = own(lowest)) {
      return own.available();
    }
  }

  void stopHere() {
    target = Math.min(target, available());
  }

  Position next(Position start, long maxMessages, long maxSlots) {
    long from = start.in(uuid(), lowest);
    long limit = available();
    if (!dropOldest) {
      return next(from, limit, maxMessages, maxSlots);
    }
    try (Consumer own = own(from)) {
      return next(Internals.position(own), limit, maxMessages, maxSlots);
    }
  }

  /**
   * Makes a branch that keeps messages in the ring while this object counts or measures them. The
   * stream's own branch may lose these messages meanwhile, because it drops its oldest messages.
   */
  private Consumer own(long from) {
    return RingReader.ownBranch(ring, BranchOptions.at(from), WHO);
  }

  private Position next(long from, long limit, long maxMessages, long maxSlots) {
    long end = from;
    while (end < limit && maxMessages > 0 && (end == from || end - from < maxSlots)) {
      int most = (int) Math.min(maxMessages, Integer.MAX_VALUE);
      Internals.Reach reach = Internals.measure(ring, end, limit, most, maxSlots - (end - from));
      if (reach.messages() == 0 || (end > from && reach.end() - from > maxSlots)) {
        break;
      }
      checkSize(end, reach, maxSlots);
      end = reach.end();
      maxMessages -= reach.messages();
    }
    return new Position(uuid(), end);
  }

  /**
   * Refuses a message of more than half of the ring. Spark commits it only when the next message is
   * there, and there would never be room for the next one.
   */
  private void checkSize(long first, Internals.Reach reach, long maxSlots) {
    long slots = reach.end() - first;
    if (maxSlots < Long.MAX_VALUE && reach.messages() == 1 && slots > ring.info().slots() / 2) {
      throw new RingException(
          Status.TOO_LARGE,
          "ring \"%s\": message %d takes %d of %d slots, and Spark releases it only when the next"
              + " one is there, for which there is no room; create the ring with more slots",
          ring.name(), first, slots, ring.info().slots());
    }
  }

  /**
   * Returns the partition with the messages of a batch; empty if it has no messages.
   *
   * @param lost a callback that gets a text about messages that the stream misses
   */
  Optional<InputPartition> partition(Position start, Position end, java.util.function.Consumer<String> lost) {
    if (start.rows() > 0) {
      throw new IllegalStateException(
          String.format(
              "ring \"%s\": the last real-time batch ended %d rows inside message %d; go on in"
                  + " real-time mode",
              ring.name(), start.rows(), start.sequence()));
    }
    if (!end.uuid().equals(uuid())) { // the batch was planned for an earlier ring of the same name
      if (!end.equals(start)) {
        lost.accept(replaced(end));
      }
      return Optional.empty();
    }
    long first = start.in(uuid(), lowest);
    return first < end.sequence()
        ? Optional.of(
            new RangeReader.RangePartition(
                RingPlace.here(ring), first, end.sequence(), dropOldest))
        : Optional.empty();
  }

  RealTimeReader.RealTimePartition realTime(Optional<Position> start) {
    return new RealTimeReader.RealTimePartition(
        RingPlace.here(ring), start.filter(this::isHere).orElseGet(this::begin));
  }

  private boolean isHere(Position position) {
    return position.uuid().equals(uuid()) && position.sequence() >= lowest;
  }

  void commit(Position end) throws InterruptedException {
    if (end.uuid().equals(uuid())) {
      Internals.advance(consumer, end.sequence());
    }
  }

  UUID uuid() {
    return ring.info().uuid();
  }

  @Override
  public void close() {
    consumer.close();
    ring.close();
  }
}
