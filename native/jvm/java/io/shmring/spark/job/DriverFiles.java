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
 * Files without names that the driver's Python has open, for a result. Processes of the same user on
 * the same host open them under /proc. The kernel frees them once the driver's Python, and what maps
 * them, is gone.
 *
 * @param token the first bytes of each file
 * @param folder the open files of the driver's Python
 * @param numbers of its files
 * @param mostBytes of the result
 */
public record DriverFiles(String token, String folder, int[] numbers, long mostBytes)
    implements Serializable {
  /** A part of a file begins at a multiple of this: the largest page of a supported machine. */
  private static final long PAGE = 64 * 1024;

  /** Attempts of a task within one attempt of its stage are fewer. */
  private static final long ATTEMPTS = 256;

  /** A small result fails in no case because memory is short. */
  private static final long LEAST_BYTES = 64 << 20;

  /** A file may be as long as a number says, and has a part of so many bytes for each attempt. */
  private static final long MOST_BYTES = 1L << 46;

  private static final String DELETED = " (deleted)"; // the kernel's word for files without names

  /**
   * Takes files of memory if there is room for the largest result, else one on disk.
   *
   * @param said by shmring/spark/driver.py: token, folder, free memory, the file on disk, and those of
   *     memory, such as "d00d /proc/123/fd 4294967296 9 7,8"
   * @param limit of the result's bytes; 0: as many as the memory takes
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

  /** Returns the file of a task: tasks that write to different files do not wait for each other. */
  public int number(TaskContext context) {
    return numbers[context.partitionId() % numbers.length];
  }

  /**
   * Opens the task's file, at a part that no other attempt writes to. Returns empty if there is none, as
   * on another host or for another user, or if the file cannot be so long.
   *
   * @param headBytes of the schema, which is written before the batches
   */
  public Optional<FileChannel> open(TaskContext context, int headBytes) throws IOException {
    Path path = Path.of(folder, Integer.toString(number(context)));
    if (!isFileWithoutName(path)) {
      return Optional.empty();
    }
    // From one part to the next; no batch has a longer head than the schema.
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
      // The task keeps its batches.
    }
    file.close();
    return Optional.empty();
  }

  /** Whether it is such a file: to open anything else might block, or change something. */
  private static boolean isFileWithoutName(Path path) {
    try {
      return Files.isRegularFile(path)
          && Files.readSymbolicLink(path).toString().endsWith(DELETED);
    } catch (IOException refused) {
      return false;
    }
  }
}
