package io.shmring.spark.write;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryNotEmptyException;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * The folder beside a ring in which a job's tasks leave their messages until it commits. It belongs to
 * the participant with its name: when that participant is dead, the next job removes the folder.
 */
final class Staging {
  private static final String PREFIX = ".shmring-staging-";
  /** Ring "a" must not take folders of ring "a-b" for its own. */
  private static final Pattern JOB = Pattern.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");

  /** Bytes that Linux's file systems allow. */
  private static final int LONGEST = 255;

  private Staging() {}

  /** The name of a job's participant. */
  static String owner(String job) {
    return "spark write " + job;
  }

  /**
   * Makes a job's folder; its participant has joined already.
   *
   * @throws RingException INVALID if the ring's name leaves no room for the folder's
   */
  static Path make(Ring ring, String job) {
    String name = prefix(ring) + job;
    int over = name.getBytes(StandardCharsets.UTF_8).length - LONGEST;
    if (over > 0) {
      throw new RingException(
          Status.INVALID,
          String.format(
              "ring \"%s\": its name is %d bytes too long for Spark's writes, which are staged in a folder"
                  + " beside the ring that has the ring's name in its own; use a ring with a shorter name",
              ring.name(), over));
    }
    Path folder = ring.path().resolveSibling(name);
    try {
      Files.createDirectory(
          folder,
          PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
    } catch (FileAlreadyExistsException error) {
      throw new IllegalStateException("job " + job + " writes already", error);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
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
        if (JOB.matcher(job).matches() && !isAlive(ring, owner(job))) {
          remove(folder);
        }
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static boolean isAlive(Ring ring, String owner) {
    return ring.participants().stream()
        .anyMatch(participant -> participant.alive() && participant.name().equals(owner));
  }

  /** Removes the staged files, and those that a losing attempt adds meanwhile. */
  static void remove(Path folder) {
    try {
      List<Path> files;
      try (Stream<Path> found = Files.list(folder)) {
        files = found.toList();
      }
      files.parallelStream().forEach(Staging::delete); // freeing memory takes time
      Files.deleteIfExists(folder);
    } catch (DirectoryNotEmptyException error) {
      remove(folder); // an attempt makes one file, so that this ends
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
