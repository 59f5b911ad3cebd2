package io.shmring.spark.job;

import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.io.Serializable;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.apache.spark.TaskContext;

/**
 * Files without names that the driver's Python has open, for a query's result. Processes of the
 * same user on the same host open the files under /proc. The kernel frees them when neither the
 * driver's Python nor a mapping of the files is left.
 *
 * @param folder the folder under /proc of the driver's open files
 * @param files number and target of each file's link in the folder, such as "7 /memfd:a (deleted)";
 *     no other file's link has this target
 * @param mostBytes largest allowed size of the result
 */
public record DriverFiles(String folder, List<String> files, long mostBytes)
    implements Serializable {
  /** Alignment of the parts of a file: the largest page of a supported machine. */
  private static final long PAGE = 64 * 1024;

  /** Upper bound of the attempts of a task within one attempt of its stage. */
  private static final long ATTEMPTS = 256;

  /** Size up to which a result never fails for lack of memory. */
  private static final long LEAST_BYTES = 64 << 20;

  /**
   * Upper bound of `mostBytes`: a file's length is a long, and the file has a part of so many bytes
   * for each attempt.
   */
  private static final long MOST_BYTES = 1L << 46;

  /**
   * Chooses files in memory if there is room for the largest result, else one file on disk.
   *
   * @param said words of shmring/spark/driver.py, with zero characters between: folder, free
   *     memory, the file on disk, and the files in memory
   * @param limit largest allowed size of the result; 0 for as many bytes as fit in memory
   */
  public static DriverFiles of(String said, long limit) {
    List<String> words = Arrays.asList(said.split("\0"));
    long room = Long.parseLong(words.get(1));
    return new DriverFiles(
        words.get(0),
        List.copyOf(limit > room ? words.subList(2, 3) : words.subList(3, words.size())),
        Math.min(limit > 0 ? limit : Math.max(room, LEAST_BYTES), MOST_BYTES));
  }

  /**
   * Returns number and target of a task's file. Tasks that write to different files do not wait for
   * each other.
   */
  private String[] file(TaskContext context) {
    return files.get(context.partitionId() % files.size()).split(" ", 2);
  }

  /** Returns the number of a task's file. */
  public int number(TaskContext context) {
    return Integer.parseInt(file(context)[0]);
  }

  /**
   * Opens the task's file, at a part to which no other attempt writes. Returns empty if there is no
   * file, for example on another host or for another user, or if the file cannot be so long.
   *
   * @param headBytes size of the schema, which is written before the batches
   */
  public Optional<FileChannel> open(TaskContext context, int headBytes) throws IOException {
    // Bytes from one part to the next; no batch has a longer head than the schema.
    long window = ((mostBytes + 2L * headBytes) / PAGE + 2) * PAGE;
    long attempt = context.stageAttemptNumber() * ATTEMPTS + context.attemptNumber();
    long part = attempt * context.numPartitions() + context.partitionId();
    String[] file = file(context);
    Path path = Path.of(folder, file[0]);
    try {
      if (part < Long.MAX_VALUE / window && isLinkTo(path, file[1])) {
        FileChannel opened = FileChannel.open(path, READ, WRITE);
        // Check the link again: the driver may close the file at any time, and its number may then
        // belong to another file.
        if (isLinkTo(path, file[1])) {
          return Optional.of(opened.position(part * window));
        }
        opened.close();
      }
    } catch (FileSystemException refused) {
      // The task keeps its batches in its result.
    }
    return Optional.empty();
  }

  private static boolean isLinkTo(Path path, String target) throws IOException {
    return Files.readSymbolicLink(path).toString().equals(target);
  }
}
