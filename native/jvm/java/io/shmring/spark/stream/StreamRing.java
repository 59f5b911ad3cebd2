package io.shmring.spark.stream;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.OwnBranch;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.stream.RingOffset.Position;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * A stream's position in one ring, kept by the driver: an exclusive branch that stands where the last
 * committed batch ended. The branch holds all later messages, so that the tasks read without taking,
 * and a driver that dies leaves only the branch, at this position.
 */
final class StreamRing implements AutoCloseable {
  private static final String WHO = "spark stream";
  private static final int JOIN_ATTEMPTS = 100;
  private static final Duration JOIN_PAUSE = Duration.ofMillis(100);

  private final String name;
  private final String branch;
  private final Ring ring;
  private final Consumer consumer;
  private final boolean dropOldest;
  private final long lowest;
  private final String start; // of a stream that begins
  private final Optional<StreamJournal> journal;
  private long target = Long.MAX_VALUE;

  /**
   * @param start where the stream continues; empty if it is new
   */
  StreamRing(String name, String branch, Optional<Position> start, ReadOptions options) {
    this.name = name;
    this.branch = branch;
    this.start = options.start();
    this.ring = Ring.attach(name);
    try {
      this.journal = journal(start, options);
      BranchOptions begin =
          start
              .filter(position -> position.uuid().equals(uuid()))
              .map(position -> BranchOptions.at(position.sequence()))
              .orElse(start.isPresent() ? BranchOptions.EARLIEST : options.branchOptions());
      this.consumer = join(begin.asExclusive());
      Internals.takeEnds(consumer); // they are stepped over
      BranchInfo info = ring.branch(branch).orElseThrow();
      this.dropOldest = info.dropOldest();
      this.lowest = info.position();
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  private Optional<StreamJournal> journal(Optional<Position> start, ReadOptions options) {
    if (options.journal().isEmpty()) {
      return Optional.empty();
    }
    StreamJournal found = new StreamJournal(options.journal(), ring);
    if (found.isOfRing()) {
      checkDropOldest();
      return Optional.of(found);
    }
    if (start.isPresent() && !start.get().uuid().equals(uuid())) {
      return Optional.empty(); // the ring was replaced, and the loss is reported elsewhere
    }
    throw new IllegalArgumentException(
        String.format(
            "%s is the journal of another ring than \"%s\" (%s): leave out option journal, or make"
                + " the ring by `shmring journal restore`",
            options.journal(), name, uuid()));
  }

  /** A branch that drops the oldest needs a journal: the stream then reads only the journal. */
  private void checkDropOldest() {
    boolean dropsOldest = ring.branch(branch).filter(BranchInfo::dropOldest).isPresent();
    if (dropsOldest && ring.branch(Ring.JOURNAL_BRANCH).isEmpty()) {
      throw new IllegalArgumentException(
          String.format(
              "ring \"%s\": branch \"%s\" drops the oldest, and the ring is not journalled: begin its"
                  + " journal first, or leave out option journal",
              name, branch));
    }
  }

  /** Waits for a query that was stopped just now: it may take a moment to leave. */
  private Consumer join(BranchOptions begin) {
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

  /** Text about what is lost if the stream continues at `start`; empty if nothing is. */
  Optional<String> loss(Position start) {
    return way(start).loss();
  }

  /** Where a stream continues that stood at a position, and a text about what is lost before. */
  private record Way(long from, Optional<String> loss) {}

  private Way way(Position start) {
    long begins = lowest();
    if (!isOurs(start)) {
      return new Way(begins, Optional.of(replaced(start)));
    }
    long from = start.sequence();
    if (from >= begins) {
      return new Way(from, Optional.empty());
    }
    StreamJournal.Place place =
        journal
            .map(found -> found.place(from, begins))
            .orElse(new StreamJournal.Place(begins, false));
    Optional<String> gone =
        Optional.of(
            String.format(
                "ring \"%s\": the messages %d to %d are gone", name, from, place.sequence() - 1));
    return new Way(place.sequence(), place.isWhole() ? Optional.empty() : gone);
  }

  /** The same for a batch; without a journal its readers find losses themselves. */
  private Way planned(Position start) {
    return journal.isPresent()
        ? way(start)
        : new Way(start.in(uuid(), lowest), Optional.empty());
  }

  /** Whether a sequence means the same in this ring. */
  private boolean isOurs(Position position) {
    return position.uuid().equals(uuid())
        || journal.filter(found -> found.holds(position)).isPresent();
  }

  private String replaced(Position position) {
    return String.format(
        "ring \"%s\" was replaced by another one of the same name (%s, not %s)",
        name, uuid(), position.uuid());
  }

  /** Messages below this are lost, or in the journal. */
  private long lowest() {
    if (!dropOldest) {
      return lowest;
    }
    return journal.isPresent() ? journal.get().written() : Math.max(lowest, ring.floor());
  }

  boolean dropOldest() {
    return dropOldest;
  }

  /** Where a new stream begins. */
  Position begin() {
    long first = journal.map(found -> found.begin(start, lowest)).orElse(lowest);
    return new Position(uuid(), first);
  }

  /** The end of the readable messages; at most the target of a stream that reads until a target. */
  long available() {
    ring.recover();
    long written = journal.map(StreamJournal::written).orElse(Long.MAX_VALUE);
    return Math.min(Math.min(inRing(), written), target);
  }

  private long inRing() {
    if (!dropOldest) {
      return consumer.available();
    }
    try (OwnBranch own = own(lowest)) { // the stream's branch may stand far behind
      return own.consumer().available();
    }
  }

  void stopHere() {
    target = Math.min(target, available());
  }

  /** The end of the next batch. */
  Position next(Position start, long maxMessages, long maxSlots) {
    long from = planned(start).from();
    long limit = available();
    long journalled = Math.min(lowest(), limit);
    if (journal.isPresent() && (dropOldest || from < lowest)) {
      boolean some = from < journalled;
      return new Position(
          uuid(), some ? journal.get().reach(from, journalled, maxMessages, maxSlots) : from);
    }
    if (!dropOldest) {
      return next(from, limit, maxMessages, maxSlots);
    }
    try (OwnBranch own = own(from)) {
      return next(own.first(), limit, maxMessages, maxSlots);
    }
  }

  /** Holds messages for a moment that the stream's branch may lose. */
  private OwnBranch own(long from) {
    return new OwnBranch(ring, BranchOptions.at(from), WHO);
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

  /** Refuses a message that leaves no room for the next one: it would stop the stream for good. */
  private void checkSize(long first, Internals.Reach reach, long maxSlots) {
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

  /** Receives texts about what a stream misses. */
  interface Losses {
    void tell(String what);
  }

  /** The partitions of a batch. */
  List<InputPartition> partitions(Position start, Position end, Losses losses) {
    if (start.rows() > 0) {
      throw new IllegalStateException(
          String.format(
              "ring \"%s\": the last real-time batch ended %d rows inside message %d; go on in"
                  + " real-time mode",
              name, start.rows(), start.sequence()));
    }
    Way way = planned(start);
    way.loss().ifPresent(losses::tell);
    long first = way.from();
    boolean isOurs = isOurs(end);
    if (!isOurs) {
      losses.tell(replaced(end));
    }
    long last = isOurs ? Math.max(end.sequence(), first) : first;
    long journalled = journal.isPresent() ? Math.min(lowest(), last) : first;
    List<InputPartition> partitions = new ArrayList<>();
    if (first < journalled) {
      partitions.addAll(journal.get().partitions(first, journalled));
    }
    long kept = Math.max(first, journalled);
    if (kept < last) {
      partitions.add(new RangePartition(RingPlace.here(ring), kept, last, dropOldest));
    }
    return partitions;
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
      Internals.advance(consumer, branch, end.sequence());
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
