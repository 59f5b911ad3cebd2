package io.shmring.spark.write;

import io.shmring.OwnFile;
import io.shmring.Ring;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Optional;
import java.util.UUID;

/**
 * Records the last epoch that a streaming query has begun to write into a ring, in a small file in
 * the ring's folder: if the folder is in memory, a restart of the machine removes ring and record
 * together. One write() stores the record whole, also if the process is killed.
 */
final class SinkRecord {
  private static final String PREFIX = ".shmring-sink-";
  private static final int SIZE = 128;

  /**
   * @param ring identity of the ring that was written; a new ring of the same name has another
   *     identity, and no epoch
   * @param sequence sequence at which the epoch's messages begin
   * @param done whether the epoch was published; false between claim and publication
   */
  record Entry(UUID ring, long epoch, long sequence, boolean done) {}

  private final String name;
  private final Path path;
  private final OwnFile file;
  private final UUID ring;

  SinkRecord(Ring ring, String query) {
    this.name = ring.name();
    this.path = ring.path().resolveSibling(PREFIX + ring.path().getFileName() + "-" + query);
    this.file = new OwnFile(path, ring.path());
    this.ring = ring.info().uuid();
  }

  /**
   * Returns the last entry; empty if there is no file, or its entry is for an earlier ring of this
   * name. Also empty if the file is shorter than a record: the first write was then not completed,
   * so no epoch has been published.
   */
  Optional<Entry> read() {
    Optional<byte[]> bytes;
    try {
      bytes = file.read(SIZE);
    } catch (IOException error) {
      throw new UncheckedIOException(
          String.format(
              "ring \"%s\": cannot read the query's record %s: %s. Remove the file if the ring has"
                  + " no epoch of this query, or start the query with another checkpoint",
              name, path, error.getMessage()),
          error);
    }
    return bytes
        .filter(record -> record.length == SIZE)
        .map(record -> parsed(new String(record, StandardCharsets.ISO_8859_1)))
        .filter(found -> found.ring().equals(ring));
  }

  private Entry parsed(String text) {
    String[] words = text.strip().split(" ");
    try {
      return new Entry(
          UUID.fromString(words[0]),
          Long.parseLong(words[1]),
          Long.parseLong(words[2]),
          words[3].equals("done"));
    } catch (IllegalArgumentException | IndexOutOfBoundsException error) {
      throw new IllegalStateException(
          String.format(
              "ring \"%s\": %s is no record of a query, so that nobody can say which epochs the ring"
                  + " has. Remove the file if the ring has none of this query, or start the query"
                  + " with another checkpoint",
              name, path),
          error);
    }
  }

  void write(long epoch, long sequence, boolean done) {
    String text = ring + " " + epoch + " " + sequence + " " + (done ? "done" : "begun");
    String line = String.format("%-" + (SIZE - 1) + "s%n", text);
    try {
      file.write(line.getBytes(StandardCharsets.US_ASCII));
    } catch (IOException error) {
      throw new UncheckedIOException(
          String.format(
              "ring \"%s\": cannot note epoch %d of the query in %s: %s. The ring %s the epoch; let the"
                  + " query write there (is there room in that folder?), and start it again",
              name, epoch, path, error.getMessage(), done ? "has" : "does not have"),
          error);
    }
  }
}
