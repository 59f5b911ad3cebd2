package io.shmring.spark.write;

import static java.nio.file.LinkOption.NOFOLLOW_LINKS;
import static java.nio.file.StandardOpenOption.WRITE;

import io.shmring.Ring;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;

/**
 * Records the last epoch that a streaming query has begun to write into a ring, in a small file in
 * the ring's folder: if the folder is in memory, a restart of the machine removes ring and record
 * together. One write() stores the record whole, also if the process is killed.
 *
 * <p>Other users know the record's name, and may plant a file, a link or a FIFO there. So read()
 * and write() refuse everything except a regular file of this user that has no second name (hard
 * link), and that other users may write only if they may write the ring. In a folder that only this
 * user may write, or that has the sticky bit, no other user can put another file in place of this
 * user's file. In other folders, that user could replace the ring, too.
 */
final class SinkRecord {
  private static final String PREFIX = ".shmring-sink-";
  private static final int SIZE = 128;
  private static final int OTHERS_WRITE = 0022;
  private static final int PERMISSIONS = 07777;

  /**
   * @param ring identity of the ring that was written: a new ring of the same name has another
   *     identity, so read() ignores the entry
   * @param sequence sequence at which the epoch's messages begin
   * @param done whether the epoch was published; false between claim and publication
   */
  record Entry(UUID ring, long epoch, long sequence, boolean done) {}

  private final String name;
  private final Path path;
  private final Path ringFile;
  private final Path own;
  private final UUID ring;

  /**
   * @param own file or folder that this process has made: its owner is the user of this process
   */
  SinkRecord(Ring ring, Path own, String query) {
    this.name = ring.name();
    this.path = ring.path().resolveSibling(PREFIX + ring.path().getFileName() + "-" + query);
    this.ringFile = ring.path();
    this.own = own;
    this.ring = ring.info().uuid();
  }

  /**
   * Returns the last entry; empty if there is no file, or its entry is for an earlier ring of this
   * name. Also empty if the file is shorter than a record: the first write was then not completed,
   * so no epoch has been published.
   */
  Optional<Entry> read() {
    byte[] bytes = {};
    try {
      if (isThere()) {
        try (InputStream file = Files.newInputStream(path, NOFOLLOW_LINKS)) {
          bytes = file.readNBytes(SIZE);
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(
          String.format(
              "ring \"%s\": cannot read the query's record %s: %s. Remove the file if the ring has"
                  + " no epoch of this query, or start the query with another checkpoint",
              name, path, error.getMessage()),
          error);
    }
    return Optional.of(bytes)
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
      write(line.getBytes(StandardCharsets.US_ASCII));
    } catch (IOException error) {
      throw new UncheckedIOException(
          String.format(
              "ring \"%s\": cannot note epoch %d of the query in %s: %s. The ring %s the epoch; let the"
                  + " query write there (is there room in that folder?), and start it again",
              name, epoch, path, error.getMessage(), done ? "has" : "does not have"),
          error);
    }
  }

  /**
   * Writes over the beginning of the file. If the write fails, for example because the disk is full,
   * removes the file if it was shorter than a record, because it may now hold a part of a record. A
   * file that was long enough stays: writing over it needs no room on the disk.
   */
  private void write(byte[] record) throws IOException {
    Set<PosixFilePermission> permissions = Files.getPosixFilePermissions(ringFile);
    if (!isThere()) {
      Files.createFile(path, PosixFilePermissions.asFileAttribute(permissions));
    }
    long before = Files.size(path);
    try (OutputStream file = Files.newOutputStream(path, WRITE, NOFOLLOW_LINKS)) {
      file.write(record);
    } catch (IOException error) {
      if (before < SIZE) {
        try {
          Files.deleteIfExists(path);
        } catch (IOException notRemoved) {
          error.addSuppressed(notRemoved);
        }
      }
      throw error;
    }
    Files.setPosixFilePermissions(path, permissions);
  }

  /** Returns whether the file exists; throws if another user may have planted or changed it. */
  private boolean isThere() throws IOException {
    Map<String, Object> found;
    try {
      found = attributes(path);
    } catch (NoSuchFileException none) {
      return false;
    }
    int mode = (int) found.get("mode") & PERMISSIONS;
    int mayBe = (int) attributes(ringFile).get("mode") & PERMISSIONS;
    Object user = attributes(own).get("uid");
    if (!found.get("isRegularFile").equals(true)) {
      throw new IOException("it is not a regular file");
    }
    if (!found.get("uid").equals(user)) {
      throw new IOException("it belongs to user %s, not to you (%s)".formatted(found.get("uid"), user));
    }
    if ((int) found.get("nlink") > 1) {
      throw new IOException(
          "it has a second name (hard link), so that it may be another file of yours");
    }
    if ((mode & OTHERS_WRITE & ~mayBe) != 0) {
      throw new IOException(
          "other users may write it (mode %04o), and its ring has mode %04o".formatted(mode, mayBe));
    }
    return true;
  }

  private static Map<String, Object> attributes(Path path) throws IOException {
    return Files.readAttributes(path, "unix:mode,uid,nlink,isRegularFile", NOFOLLOW_LINKS);
  }
}
