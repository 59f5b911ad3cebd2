package io.shmring.spark.write;

import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * The messages of one task, one behind the other in a file.
 *
 * @param path of the file
 * @param rows in these messages
 * @param lengths of the messages
 * @param aligns for each message the byte that shall lie on a 64-byte boundary, or -1
 */
record StagedFile(String path, long rows, int[] lengths, int[] aligns) implements WriterCommitMessage {
  /** The files of the tasks that have committed. */
  static List<StagedFile> of(WriterCommitMessage[] messages) {
    return Arrays.stream(messages)
        .filter(Objects::nonNull)
        .map(StagedFile.class::cast)
        .toList();
  }
}
