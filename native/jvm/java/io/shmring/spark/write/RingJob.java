package io.shmring.spark.write;

import io.shmring.Claim;
import io.shmring.Kind;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.columns.RingTypes;
import io.shmring.spark.job.RingPlace;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributes;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.UUID;
import java.util.function.LongConsumer;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * A job's (or epoch's) access to a ring, kept by the driver: a producer, and the folder in which
 * the tasks stage their messages. Only publishAtOnce() and publishInPieces() make staged messages
 * readable.
 */
final class RingJob implements AutoCloseable {
  private static final int PARTS_OF_RING = 4;

  private final WriteOptions options;
  final Ring ring;
  private final Producer producer;
  private final Path folder;
  private final int kind;

  RingJob(WriteOptions options) {
    this.options = options;
    this.ring = Ring.attach(options.ring());
    String job = UUID.randomUUID().toString();
    try {
      RingTypes.checkWritable(ring);
      this.kind = ring.schema().length == 0 ? Kind.BYTES : Kind.ARROW_BATCH;
      this.producer = ring.producer(Staging.owner(job));
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
    try {
      Staging.sweep(ring);
      this.folder = Staging.make(ring, job);
    } catch (RuntimeException error) {
      producer.close();
      ring.close();
      throw error;
    }
  }

  PartWriter.PartWriterFactory writers(StructType schema) {
    return new PartWriter.PartWriterFactory(
        options, schema, RingPlace.here(ring), folder.toString());
  }

  /** Returns the record of a streaming query that writes into the ring. */
  SinkRecord record(String query) {
    return new SinkRecord(ring, folder, query);
  }

  /**
   * Returns whether all staged messages need at most half of the ring's slots: only then may they
   * become readable together.
   */
  boolean fitsAtOnce(List<StagedFile> files) {
    long slots =
        files.stream()
            .flatMapToLong(
                file -> IntStream.range(0, file.lengths().length).mapToLong(i -> slots(file, i)))
            .sum();
    return slots <= ring.info().slots() / 2;
  }

  /**
   * Publishes all staged messages by one store, so that they become readable together.
   *
   * @param claimed function called with the claim's first sequence just before the store, so that
   *     the caller can record where the messages will be
   */
  void publishAtOnce(List<StagedFile> files, LongConsumer claimed) {
    if (files.stream().anyMatch(file -> file.lengths().length > 0)) {
      publish(files, 0, claimed);
    }
  }

  /**
   * Publishes messages piece by piece, because together they are too large for the ring. A piece is
   * at most a quarter of the ring, or one larger message. Each piece waits until readers have made
   * room for it.
   */
  void publishInPieces(List<StagedFile> files) {
    long room = ring.info().slots() / PARTS_OF_RING;
    for (StagedFile file : files) {
      int count = file.lengths().length;
      long position = 0;
      for (int first = 0, end; first < count; first = end) {
        long slots = slots(file, first);
        for (end = first + 1; end < count; end++) {
          slots += slots(file, end);
          if (slots > room) {
            break;
          }
        }
        int[] lengths = Arrays.copyOfRange(file.lengths(), first, end);
        int[] aligns = Arrays.copyOfRange(file.aligns(), first, end);
        StagedFile piece = new StagedFile(file.path(), file.rows(), lengths, aligns);
        publish(List.of(piece), position, id -> {});
        position += Arrays.stream(lengths).asLongStream().sum();
      }
    }
  }

  void publishEnd() {
    try {
      producer.end();
    } catch (InterruptedException error) {
      throw interrupted();
    }
  }

  private void publish(List<StagedFile> files, long position, LongConsumer claimed) {
    int[] lengths = files.stream().flatMapToInt(file -> Arrays.stream(file.lengths())).toArray();
    int[] aligns = files.stream().flatMapToInt(file -> Arrays.stream(file.aligns())).toArray();
    try (Claim claim = claim(lengths, aligns)) {
      int part = 0;
      for (StagedFile file : files) {
        part = fill(claim, part, file, position);
      }
      claimed.accept(claim.id());
      claim.commit(kind);
    }
  }

  /**
   * Copies a file's messages into the claim, in several threads.
   *
   * @param part index of the file's first message in the claim
   * @param position offset in the file at which that message begins
   * @return index in the claim for the first message of the next file
   */
  private static int fill(Claim claim, int part, StagedFile file, long position) {
    int count = file.lengths().length;
    long[] at = new long[count + 1];
    at[0] = position;
    for (int i = 0; i < count; i++) {
      at[i + 1] = at[i] + file.lengths()[i];
    }
    IntStream.range(0, count)
        .parallel()
        .forEach(i -> claim.fill(part + i, Path.of(file.path()), at[i]));
    return part + count;
  }

  private Claim claim(int[] lengths, int[] aligns) {
    try {
      return producer
          .claimAll(lengths, aligns, Duration.ofMillis(options.timeoutMillis()))
          .orElseThrow(
              () ->
                  new RingException(
                      Status.NO_SPACE,
                      "ring \"%s\" had no room for %d messages in %.1f s: %s (.option(\"timeout\","
                          + " ...) waits longer)",
                      ring.name(), lengths.length, options.timeoutMillis() / 1000.0,
                      ring.whyFull()));
    } catch (InterruptedException error) {
      throw interrupted();
    }
  }

  private IllegalStateException interrupted() {
    Thread.currentThread().interrupt();
    return new IllegalStateException(
        "interrupted while waiting for room in ring \"" + ring.name() + "\"");
  }

  private static long slots(StagedFile file, int message) {
    return Producer.slotsFor(file.lengths()[message], file.aligns()[message] >= 0);
  }

  /** Removes the staged files and leaves the ring. */
  @Override
  public void close() {
    try {
      Staging.remove(folder);
    } finally {
      producer.close();
      ring.close();
    }
  }

  /**
   * The messages of one task, one after the other in a file.
   *
   * @param path path of the file
   * @param rows number of rows in the messages
   * @param lengths length of each message in bytes
   * @param aligns for each message, the offset in the message of the byte that has to lie on a
   *     64-byte boundary in the ring; -1 if the message needs no alignment
   */
  record StagedFile(String path, long rows, int[] lengths, int[] aligns)
      implements WriterCommitMessage {
    /** Returns the files of the tasks that have committed. */
    static List<StagedFile> of(WriterCommitMessage[] messages) {
      return Arrays.stream(messages)
          .filter(Objects::nonNull)
          .map(StagedFile.class::cast)
          .toList();
    }
  }

  /**
   * The folder beside a ring in which a job's tasks leave their messages until the job commits. The
   * folder and the job's participant are named after the job: when the participant is dead, the
   * next job removes the folder.
   */
  static final class Staging {
    private static final String PREFIX = ".shmring-staging-";
    /**
     * Pattern of a job's id. A folder's name is PREFIX, the ring's name, "-" and the job's id.
     * Without a check of the id, jobs of ring "a" would also remove folders of ring "a-b".
     */
    private static final Pattern JOB = Pattern.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");

    private Staging() {}

    /** Returns the name of a job's participant. */
    static String owner(String job) {
      return "spark write " + job;
    }

    /**
     * Makes a job's folder. The job's participant must join the ring before: sweep() of another job
     * removes folders of jobs that have no living participant.
     */
    static Path make(Ring ring, String job) {
      Path folder = ring.path().resolveSibling(prefix(ring) + job);
      try {
        Files.createDirectory(
            folder,
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
      } catch (FileAlreadyExistsException error) {
        throw new IllegalStateException("job " + job + " writes already", error);
      } catch (IOException error) {
        throw new UncheckedIOException(
            String.format(
                "ring \"%s\": Spark's writes are staged in a folder beside it, which cannot be made: %s;"
                    + " where its name is too long, use a ring with a shorter one",
                ring.name(), error.getMessage()),
            error);
      }
      return folder;
    }

    /** Removes the folders of jobs whose driver is dead. */
    static void sweep(Ring ring) {
      String prefix = prefix(ring);
      try (DirectoryStream<Path> found =
          Files.newDirectoryStream(
              ring.path().getParent(), path -> path.getFileName().toString().startsWith(prefix))) {
        for (Path folder : found) {
          String job = folder.getFileName().toString().substring(prefix.length());
          if (JOB.matcher(job).matches() && isOurs(ring, folder) && !isAlive(ring, owner(job))) {
            remove(folder);
          }
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    /**
     * Returns whether a path is a folder that belongs to the ring's owner. Other users may have
     * given the name of a job's folder to a file, a folder or a link beside the ring.
     */
    private static boolean isOurs(Ring ring, Path folder) {
      try {
        PosixFileAttributes found =
            Files.readAttributes(
                folder, PosixFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
        return found.isDirectory() && found.owner().equals(Files.getOwner(ring.path()));
      } catch (IOException error) {
        return false; // another job has removed the folder meanwhile
      }
    }

    private static boolean isAlive(Ring ring, String owner) {
      return ring.participants().stream()
          .anyMatch(participant -> participant.alive() && participant.name().equals(owner));
    }

    /** Removes a job's folder and its files, also files that a task attempt adds meanwhile. */
    static void remove(Path folder) {
      try {
        List<Path> files;
        try (Stream<Path> found = Files.list(folder)) {
          files = found.toList();
        }
        // Parallel, because freeing memory takes time.
        files.parallelStream().forEach(Staging::delete);
        Files.deleteIfExists(folder);
      } catch (DirectoryNotEmptyException error) {
        // A task attempt added its file after the listing: remove that file, too. The recursion
        // ends, because each attempt adds only one file.
        remove(folder);
      } catch (NoSuchFileException error) {
        return;
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    private static void delete(Path file) {
      try {
        Files.deleteIfExists(file);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    private static String prefix(Ring ring) {
      return PREFIX + ring.path().getFileName() + "-";
    }
  }
}
