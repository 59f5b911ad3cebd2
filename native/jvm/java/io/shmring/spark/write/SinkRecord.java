package io.shmring.spark.write;

import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.WRITE;

import io.shmring.Ring;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.UUID;

/**
 * Which epoch of a query a ring has seen last: a small file beside the ring, since both are as long
 * in memory. One write() stores it whole, also if the process is killed.
 */
final class SinkRecord {
  private static final String PREFIX = ".shmring-sink-";
  private static final int SIZE = 128;

  /**
   * @param ring the ring that was written to; one that was made anew has seen nothing
   * @param sequence at which the epoch's messages begin
   * @param done false between the claim and the publication
   */
  record Entry(UUID ring, long epoch, long sequence, boolean done) {}

  private final Path path;
  private final UUID ring;

  SinkRecord(Ring ring, String query) {
    this.path = ring.path().resolveSibling(PREFIX + ring.path().getFileName() + "-" + query);
    this.ring = ring.info().uuid();
  }

  /** The last entry of this very ring. */
  Optional<Entry> read() {
    if (!Files.exists(path)) {
      return Optional.empty();
    }
    try {
      String[] words = Files.readString(path, StandardCharsets.US_ASCII).strip().split(" ");
      Entry entry =
          new Entry(
              UUID.fromString(words[0]),
              Long.parseLong(words[1]),
              Long.parseLong(words[2]),
              words[3].equals("done"));
      return Optional.of(entry).filter(found -> found.ring().equals(ring));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  void write(long epoch, long sequence, boolean done) {
    String text = ring + " " + epoch + " " + sequence + " " + (done ? "done" : "begun");
    ByteBuffer bytes =
        ByteBuffer.wrap(
            String.format("%-" + (SIZE - 1) + "s%n", text).getBytes(StandardCharsets.US_ASCII));
    try (FileChannel file = FileChannel.open(path, CREATE, WRITE)) {
      file.write(bytes, 0);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
