package io.shmring.spark.read;

import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.RingSchema;
import io.shmring.journal.Journal;
import io.shmring.journal.SegmentReader;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.job.TaskHost;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads the messages of a journal's segment. */
final class JournalReader implements PartitionReader<ColumnarBatch> {
  private static final Logger LOG = LoggerFactory.getLogger(JournalReader.class);

  private final JournalPartition partition;
  private final ReadOptions options;
  private final ReadMetrics metrics = new ReadMetrics();
  private final Optional<SegmentReader> segment; // empty: forgotten, as the options allow
  private final Optional<RingColumns> columns;
  private final Iterator<Message> messages = new Kept();
  private Optional<ColumnarBatch> found = Optional.empty();
  private boolean isEnded;

  JournalReader(JournalPartition partition, ReadPlan plan) {
    this.partition = partition;
    this.options = plan.options();
    String label = String.format("journal \"%s\"", partition.directory());
    this.segment = open(label);
    try {
      this.columns =
          segment.map(
              reader ->
                  RingColumns.of(
                      label, RingSchema.of(label, reader.schema()), plan.schema(), plan.columns()));
    } catch (RuntimeException error) {
      close();
      throw error;
    }
  }

  private Optional<SegmentReader> open(String label) {
    try {
      Journal journal = new Journal(Path.of(partition.directory()));
      return Optional.of(new SegmentReader(journal, partition.piece()));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (RingException error) {
      if (!TaskHost.name().equals(partition.host())) {
        throw TaskHost.elsewhere(
            label,
            partition.host(),
            options.hostWaitMillis(),
            "let %1$s have an executor with a free core, or let the task wait longer for one:"
                + " .option(\"hostWait\", \"2 minutes\")");
      }
      checkLoss(error);
      return Optional.empty();
    }
  }

  private void checkLoss(RingException error) {
    if (error.status() != Status.OVERRUN) {
      throw error;
    }
    if (options.failOnDataLoss()) {
      throw new RingException(
          Status.OVERRUN,
          error.getMessage()
              + "; go on without them with .option(\"failOnDataLoss\", \"false\")");
    }
    LOG.warn("{}; going on without them", error.getMessage());
    isEnded = true;
  }

  /** Returns the messages before a loss, if the options allow losses. */
  private final class Kept implements Iterator<Message> {
    @Override
    public boolean hasNext() {
      try {
        return !isEnded && segment.orElseThrow().hasNext();
      } catch (RingException error) {
        checkLoss(error);
        return false;
      }
    }

    @Override
    public Message next() {
      return segment.orElseThrow().next();
    }
  }

  @Override
  public boolean next() {
    if (columns.isEmpty()) {
      return false;
    }
    List<Message> read = metrics.take(messages, columns.get().messagesPerBatch());
    found = read.isEmpty() ? Optional.empty() : Optional.of(columns.get().map(read, () -> {}));
    return found.isPresent();
  }

  @Override
  public ColumnarBatch get() {
    return found.orElseThrow();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return metrics.values();
  }

  @Override
  public void close() {
    try {
      if (segment.isPresent()) {
        segment.get().close();
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
