package io.shmring.journal;

import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.TreeSet;
import java.util.UUID;
import java.util.function.Predicate;
import java.util.stream.Stream;

/**
 * A journal's directory. A journal may be writing there, and forgetting the oldest segments, while
 * this is used: each method reads the directory again.
 */
public final class Journal {
  private final Path directory;

  public Journal(Path directory) {
    this.directory = directory;
  }

  /**
   * The part of a segment that is to be read.
   *
   * @param segment its first sequence, which is its name
   * @param crc of its header, which no other segment has
   * @param from the first sequence
   * @param until the sequence before which to stop; Long.MAX_VALUE for all messages
   */
  public record Piece(long segment, int crc, long from, long until) implements Serializable {}

  /** The oldest sequence that the journal keeps; empty if nothing was written yet. */
  public OptionalLong oldest() throws IOException {
    TreeSet<Long> names = names();
    return names.isEmpty() ? OptionalLong.empty() : OptionalLong.of(names.first());
  }

  /** The ring from which its newest segment was written; empty if nothing was written yet. */
  public Optional<UUID> ring() throws IOException {
    return newest(Segment::ring);
  }

  /** That ring's Arrow schema as an IPC message, which is empty for a ring of bytes. */
  public Optional<byte[]> schema() throws IOException {
    return newest(Segment::schema);
  }

  /** The sequence behind the last message; 0 if there is none. */
  public long end() throws IOException {
    return newest(Journal::end).orElse(0L);
  }

  /** The sequence up to which a ring was written; empty if the journal keeps nothing of it. */
  public OptionalLong end(UUID ring) throws IOException {
    Optional<Long> end =
        newest(segment -> segment.ring().equals(ring), Journal::end);
    return end.isPresent() ? OptionalLong.of(end.get()) : OptionalLong.empty();
  }

  private interface Look<T> {
    T at(Segment segment) throws IOException;
  }

  private <T> Optional<T> newest(Look<T> look) throws IOException {
    return newest(any -> true, look);
  }

  /** Reads something of the newest of these segments. */
  private <T> Optional<T> newest(Predicate<Segment> some, Look<T> look) throws IOException {
    for (long name : names().descendingSet()) {
      try (Segment segment = open(name).orElse(null)) {
        if (segment != null && some.test(segment)) {
          return Optional.of(look.at(segment));
        }
      } catch (NoSuchFileException forgotten) {
        // Then all segments before it are, too.
      }
    }
    return Optional.empty();
  }

  private static long end(Segment segment) throws IOException {
    Segment.Walk walk = segment.new Walk(record -> !segment.isLast() || segment.isWhole(record));
    while (walk.next().isPresent()) {}
    return walk.end();
  }

  /**
   * Measures how far so many messages in so many slots, or one larger message, reach from `from` on:
   * to the message behind them, to `until`, or to the end of the journal. Reads no message's bytes.
   */
  public long reach(long from, long until, long maxMessages, long maxSlots) throws IOException {
    List<Piece> pieces = pieces(from, until);
    boolean isAll = maxMessages == Long.MAX_VALUE && maxSlots == Long.MAX_VALUE;
    long at = from;
    long messages = 0;
    for (Piece piece : isAll ? pieces.subList(Math.max(pieces.size() - 1, 0), pieces.size()) : pieces) {
      try (Segment segment = open(piece)) {
        Segment.Walk walk = segment.new Walk(record -> true);
        while (walk.end() < until) {
          Optional<RecordHeader> record = walk.next();
          if (record.isEmpty()) {
            break;
          }
          for (int i = 0; i < record.get().messages(); i++) {
            long id = record.get().id(i);
            long behind = id + record.get().slots(i);
            boolean isFull = messages == maxMessages || behind - from > maxSlots;
            if (id >= from && id < until && messages > 0 && isFull) {
              return id;
            }
            messages += id >= from ? 1 : 0;
          }
        }
        at = Math.max(at, Math.min(walk.end(), until));
      }
    }
    return at;
  }

  /** Returns the pieces between two sequences; the journal may forget all of them meanwhile. */
  public List<Piece> pieces(long from, long until) throws IOException {
    TreeSet<Long> names = names();
    while (true) {
      try {
        return pieces(names, from, until);
      } catch (NoSuchFileException forgotten) {
        TreeSet<Long> now = names();
        if (now.equals(names)) {
          throw new RingException(
              Status.NOT_FOUND,
              String.format("%s is a link to a file that is not there", forgotten.getFile()));
        }
        names = now;
      }
    }
  }

  private List<Piece> pieces(TreeSet<Long> names, long from, long until) throws IOException {
    List<Piece> pieces = new ArrayList<>();
    for (long name : names.headSet(until)) {
      Long next = names.higher(name);
      long end = next == null ? until : Math.min(next, until);
      if (end > from) {
        Optional<Segment> opened = open(name, next == null);
        if (opened.isPresent()) {
          try (Segment segment = opened.get()) {
            pieces.add(new Piece(name, segment.crc(), Math.max(name, from), end));
          }
        }
      }
    }
    return pieces;
  }

  /**
   * Opens the segment of a piece.
   *
   * @throws RingException with OVERRUN if the journal has forgotten it, with NOT_FOUND if the read was
   *     planned with another journal
   */
  Segment open(Piece piece) throws IOException {
    Optional<Segment> opened;
    try {
      opened = open(piece.segment());
    } catch (NoSuchFileException forgotten) {
      throw new RingException(
          Status.OVERRUN,
          String.format(
              "journal %s: the messages from %d on have been forgotten since this was planned",
              directory, piece.from()));
    }
    if (opened.isPresent() && opened.get().crc() == piece.crc()) {
      return opened.get();
    }
    if (opened.isPresent()) {
      opened.get().close();
    }
    throw new RingException(
        Status.NOT_FOUND,
        String.format(
            "journal %s is not the one that was planned with: it was replaced by another one;"
                + " load it anew",
            directory));
  }

  private Optional<Segment> open(long name) throws IOException {
    return open(name, names().higher(name) == null);
  }

  private Optional<Segment> open(long name, boolean last) throws IOException {
    String digits = String.format("%0" + Format.NAME_DIGITS + "d", name);
    return Segment.open(directory.resolve(digits + Format.SUFFIX), last);
  }

  /** The first sequences of the segments. */
  private TreeSet<Long> names() throws IOException {
    TreeSet<Long> names = new TreeSet<>();
    String pattern = "00[0-9]{18}\\" + Format.SUFFIX; // below 2^55
    try (Stream<Path> files = Files.list(directory)) {
      files
          .map(file -> file.getFileName().toString())
          .filter(name -> name.matches(pattern))
          .forEach(name -> names.add(Long.parseLong(name.substring(0, Format.NAME_DIGITS))));
    } catch (NoSuchFileException missing) {
      throw new RingException(
          Status.NOT_FOUND,
          String.format(
              "%s holds no journal; `shmring journal run RING %s` begins one",
              directory, directory));
    } catch (NotDirectoryException wrong) {
      throw new RingException(
          Status.INVALID,
          String.format("%s is a file: a journal is a directory of segments", directory));
    }
    return names;
  }
}
