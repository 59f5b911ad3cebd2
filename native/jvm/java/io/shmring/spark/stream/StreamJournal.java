package io.shmring.spark.stream;

import io.shmring.BranchInfo;
import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.journal.Journal;
import io.shmring.spark.read.JournalPartition;
import io.shmring.spark.stream.RingOffset.Position;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.UUID;

/** The journal of a stream's ring, for messages that the ring no longer holds. */
final class StreamJournal {
  private final String directory;
  private final Journal journal;
  private final Ring ring;

  StreamJournal(String directory, Ring ring) {
    this.directory = directory;
    this.journal = new Journal(Path.of(directory));
    this.ring = ring;
  }

  /**
   * The position at which a stream continues that stands below the ring's oldest message.
   *
   * @param sequence in the journal, or where the ring begins if the journal has no more
   * @param isWhole nothing is lost before it
   */
  record Place(long sequence, boolean isWhole) {}

  /** Whether it was written from this ring, or this ring was restored from it. */
  boolean isOfRing() {
    return look(
        () -> {
          Optional<UUID> newest = journal.ring();
          return newest.isEmpty()
              || newest.get().equals(ring.info().uuid())
              || journal.end() == ring.info().firstSequence();
        });
  }

  /**
   * Whether sequences continue in this ring as in another one, up to that position: the ring was
   * restored from the journal of the other one.
   */
  boolean holds(Position position) {
    OptionalLong end = look(() -> journal.end(position.uuid()));
    return end.isPresent() && position.sequence() <= end.getAsLong();
  }

  /** The position at which a new stream begins. */
  long begin(String start, long ringBegins) {
    return switch (start) {
      case "latest" -> ringBegins;
      case "earliest" -> Math.min(oldest().orElse(ringBegins), ringBegins);
      default -> Math.min(Long.parseLong(start), ringBegins);
    };
  }

  private OptionalLong oldest() {
    return look(journal::oldest);
  }

  /**
   * @param ringBegins all messages below it are read from the journal
   */
  Place place(long sequence, long ringBegins) {
    while (true) {
      long at = Math.max(sequence, oldest().orElse(ringBegins));
      if (at >= ringBegins) {
        return new Place(ringBegins, false);
      }
      if (at >= written()) { // it continues when those messages are there
        return new Place(at, at == sequence);
      }
      try {
        if (reach(at, ringBegins, 1, 1) > at) {
          return new Place(at, at == sequence);
        }
        return new Place(ringBegins, at == sequence && isAborted(at, ringBegins));
      } catch (RingException error) {
        if (error.status() != Status.OVERRUN) { // forgotten meanwhile: another message is the oldest then
          throw error;
        }
      }
    }
  }

  /** All messages below are on disk, as far as this ring knows its journal. */
  long written() {
    return ring.branch(Ring.JOURNAL_BRANCH).map(BranchInfo::released).orElse(Long.MAX_VALUE);
  }

  /** Whether only aborted claims lie there, which are in no journal: nothing was published. */
  private boolean isAborted(long from, long end) {
    Internals.Reach reach;
    try {
      reach = Internals.measure(ring, from, end, 1, Long.MAX_VALUE);
    } catch (RingException overwritten) {
      return false;
    }
    boolean isUntouched = ring.claimed() - from <= ring.info().slots();
    return isUntouched && reach.messages() == 0 && reach.end() >= end;
  }

  /** The end of a batch. */
  long reach(long from, long ringBegins, long maxMessages, long maxSlots) {
    return look(() -> journal.reach(from, ringBegins, maxMessages, maxSlots));
  }

  List<JournalPartition> partitions(long from, long until) {
    return JournalPartition.of(directory, from, until);
  }

  private interface Look<T> {
    T at() throws IOException;
  }

  private static <T> T look(Look<T> look) {
    try {
      return look.at();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
