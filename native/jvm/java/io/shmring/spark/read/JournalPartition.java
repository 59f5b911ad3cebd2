package io.shmring.spark.read;

import io.shmring.journal.Journal;
import io.shmring.spark.job.TaskHost;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.List;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A segment of a journal, or a part of it.
 *
 * @param directory of the journal
 * @param host that has it
 */
public record JournalPartition(String directory, String host, Journal.Piece piece)
    implements ColumnarPartition {
  /** A partition for each segment between two sequences, in the driver. */
  public static List<JournalPartition> of(String directory, long from, long until) {
    try {
      return new Journal(Path.of(directory))
          .pieces(from, until).stream()
              .map(piece -> new JournalPartition(directory, TaskHost.name(), piece))
              .toList();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public String[] preferredLocations() {
    return new String[] {host};
  }

  @Override
  public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
    return new JournalReader(this, plan);
  }
}
