package io.shmring.spark.job;

import static java.nio.charset.StandardCharsets.US_ASCII;
import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Optional;
import org.apache.spark.TaskContext;

/**
 * Files without names that the driver's Python has open, for a query's result. Processes of the
 * same user on the same host open the files under /proc. The kernel frees them when neither the
 * driver's Python nor a mapping of the files is left.
 *
 * @param token first bytes of each file, to recognize it
 * @param folder the folder under /proc of the driver's open files
 * @param numbers numbers of the files in the folder
 * @param mostBytes largest allowed size of the result
 */
public record DriverFiles(String token, String folder, int[] numbers, long mostBytes)
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

  private static final String DELETED = " (deleted)"; // mark of the kernel for files without names

  /**
   * Chooses files in memory if there is room for the largest result, else one file on disk.
   *
   * @param said words of shmring/spark/driver.py: token, folder, free memory, number of the file on
   *     disk, and numbers of the files in memory; for example "d00d /proc/123/fd 4294967296 9 7,8"
   * @param limit largest allowed size of the result; 0 for as many bytes as fit in memory
   */
  public static DriverFiles of(String said, long limit) {
    String[] words = said.split(" ");
    long room = Long.parseLong(words[2]);
    String numbers = words[limit > room ? 3 : 4];
    return new DriverFiles(
        words[0],
        words[1],
        Arrays.stream(numbers.split(",")).mapToInt(Integer::parseInt).toArray(),
        Math.min(limit > 0 ? limit : Math.max(room, LEAST_BYTES), MOST_BYTES));
  }

  /**
   * Returns the number of a task's file. Tasks that write to different files do not wait for each
   * other.
   */
  public int number(TaskContext context) {
    return numbers[context.partitionId() % numbers.length];
  }

  /**
   * Opens the task's file, at a part to which no other attempt writes. Returns empty if there is no
   * file, for example on another host or for another user, or if the file cannot be so long.
   *
   * @param headBytes size of the schema, which is written before the batches
   */
  public Optional<FileChannel> open(TaskContext context, int headBytes) throws IOException {
    Path path = Path.of(folder, Integer.toString(number(context)));
    if (!isFileWithoutName(path)) {
      return Optional.empty();
    }
    // Bytes from one part to the next; no batch has a longer head than the schema.
    long window = ((mostBytes + 2L * headBytes) / PAGE + 2) * PAGE;
    long attempt = context.stageAttemptNumber() * ATTEMPTS + context.attemptNumber();
    long part = attempt * context.numPartitions() + context.partitionId() + 1;
    FileChannel file;
    try {
      file = FileChannel.open(path, READ, WRITE);
    } catch (FileSystemException refused) {
      return Optional.empty();
    }
    try {
      ByteBuffer begin = ByteBuffer.allocate(token.length());
      file.read(begin, 0);
      if (Arrays.equals(begin.array(), token.getBytes(US_ASCII))) {
        return Optional.of(file.position(Math.multiplyExact(part, window)));
      }
    } catch (ArithmeticException tooLong) {
      // The task's part would lie beyond the largest file, so the task keeps its batches in its
      // result.
    }
    file.close();
    return Optional.empty();
  }

  /**
   * Returns whether a path leads to a file without a name: opening any other file might block, or
   * change something.
   */
  private static boolean isFileWithoutName(Path path) {
    try {
      return Files.isRegularFile(path)
          && Files.readSymbolicLink(path).toString().endsWith(DELETED);
    } catch (IOException refused) {
      return false;
    }
  }
}
