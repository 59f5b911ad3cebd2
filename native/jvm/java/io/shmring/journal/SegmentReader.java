package io.shmring.journal;

import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The messages of one segment, in order. Each lies in a copy of its record, which the garbage
 * collector frees.
 */
public final class SegmentReader implements Iterator<Message>, AutoCloseable {
  private final Journal.Piece piece;
  private final Segment segment;
  private final Segment.Walk walk;
  private Optional<RecordHeader> record = Optional.empty();
  private ByteBuffer slots = ByteBuffer.allocate(0); // of that record
  private int next; // message of that record

  /**
   * @throws RingException with OVERRUN if the journal has forgotten it, with NOT_FOUND if the read was
   *     planned with another journal
   */
  public SegmentReader(Journal journal, Journal.Piece piece) throws IOException {
    this.piece = piece;
    this.segment = journal.open(piece);
    try {
      this.walk = segment.new Walk(this::isWhole);
    } catch (IOException | RuntimeException error) {
      segment.close();
      throw error;
    }
  }

  /** The Arrow schema of the ring from which the segment was written; empty for a ring of bytes. */
  public byte[] schema() {
    return segment.schema();
  }

  /** Checks the slots of a skipped record only at the end: a torn record is the end. */
  private boolean isWhole(RecordHeader record) throws IOException {
    if (record.end() <= piece.from()) {
      return !segment.isLast() || segment.isWhole(record);
    }
    Optional<ByteBuffer> read = segment.payload(record);
    read.ifPresent(bytes -> slots = bytes);
    return read.isPresent();
  }

  /**
   * Whether there is another message.
   *
   * @throws RingException with DAMAGED if data that had been on disk is unreadable, with OVERRUN if
   *     the journal ends before the wanted messages do
   */
  @Override
  public boolean hasNext() {
    try {
      while (true) {
        while (record.isPresent() && next < record.get().messages()) {
          long id = record.get().id(next);
          if (id >= piece.until()) {
            return false;
          }
          if (id >= piece.from()) {
            return true;
          }
          next++;
        }
        if (walk.end() >= piece.until()) {
          return false;
        }
        record = walk.next();
        next = 0;
        if (record.isEmpty()) {
          checkEnd();
          return false;
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private void checkEnd() {
    if (segment.isLast() && piece.until() < Long.MAX_VALUE && walk.end() < piece.until()) {
      throw new RingException(
          Status.OVERRUN,
          String.format(
              "%s: the messages %d to %d are gone: the journal ends before them, or is damaged"
                  + " there",
              segment.path(), walk.end(), piece.until() - 1));
    }
  }

  @Override
  public Message next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    RecordHeader from = record.orElseThrow();
    int message = next++;
    return Message.of(
        from.id(message),
        from.time(message),
        from.kind(message),
        from.slots(message),
        from.data(message, slots, segment.path()));
  }

  @Override
  public void close() throws IOException {
    segment.close();
  }
}
