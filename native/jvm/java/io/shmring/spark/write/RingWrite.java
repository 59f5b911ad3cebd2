package io.shmring.spark.write;

import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.spark.columns.RingTypes;
import io.shmring.spark.job.RingMetric.Value;
import io.shmring.spark.job.RingMetric;
import io.shmring.spark.write.SinkRecord.Entry;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A write of rows into a ring. In a stream's mode "update", changed rows are appended, too. */
public final class RingWrite implements SupportsStreamingUpdateAsAppend, Write {
  private final LogicalWriteInfo info;
  private final WriteOptions options;
  private final WriteMetrics metrics;
  private boolean streams;

  /**
   * @param table columns of the ring
   * @param metrics counters of the rows written
   */
  public RingWrite(
      LogicalWriteInfo info, WriteOptions options, StructType table, WriteMetrics metrics) {
    this.info = info;
    this.options = options;
    this.metrics = metrics;
    if (table.equals(RingTypes.QUEUE_TABLE)) {
      checkMessage(info.schema());
    } else {
      checkColumns(info.schema(), table);
    }
  }

  private void checkMessage(StructType rows) {
    boolean right =
        rows.length() == 1
            && (rows.fields()[0].dataType().equals(DataTypes.BinaryType)
                || rows.fields()[0].dataType().equals(DataTypes.StringType));
    if (!right) {
      throw new IllegalArgumentException(
          String.format(
              "ring \"%s\" holds bytes: write one column of type binary or string, not%n%s",
              options.ring(), rows.treeString()));
    }
  }

  private void checkColumns(StructType rows, StructType table) {
    if (!columns(rows).equals(columns(table))) {
      throw new IllegalArgumentException(
          String.format(
              "ring \"%s\" has the columns%n%s%nand these rows are%n%s%nselect and cast them so that"
                  + " they agree",
              options.ring(), columns(table), columns(rows)));
    }
  }

  private static String columns(StructType type) {
    return Arrays.stream(type.fields())
        .map((StructField field) -> field.name() + " " + field.dataType().catalogString())
        .collect(Collectors.joining(", "));
  }

  @Override
  public Write build() {
    return this;
  }

  @Override
  public String description() {
    return "shmring " + options.ring();
  }

  /**
   * Returns no metrics for a stream: Spark's UI would show zeros, because Spark does not collect
   * the driver's metrics of a stream. The stream's progress shows the counters instead.
   */
  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return streams ? new CustomMetric[0] : WriteMetrics.supported();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return metrics.values();
  }

  @Override
  public BatchWrite toBatch() {
    return new RingBatchWrite();
  }

  @Override
  public StreamingWrite toStreaming() {
    streams = true;
    return new RingStreamingWrite();
  }

  /**
   * A batch job. Its rows become readable when it commits: by one store if they take at most half
   * of the ring, otherwise piece by piece while the commit runs.
   */
  private final class RingBatchWrite implements BatchWrite {
    private RingJob job;

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      job = new RingJob(options);
      return job.writers(info.schema());
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      List<RingJob.StagedFile> files = RingJob.StagedFile.of(messages);
      try (RingJob committing = job) {
        if (committing.fitsAtOnce(files)) {
          committing.publishAtOnce(files, id -> {});
        } else if (options.atomic()) {
          throw new IllegalStateException(
              String.format(
                  "the job's rows take more than half of ring \"%s\" and cannot become readable at"
                      + " once; create it with more slots, or leave the option \"atomic\" out",
                  options.ring()));
        } else {
          committing.publishInPieces(files);
        }
        metrics.published(files);
        if (options.endMarker()) {
          committing.publishEnd();
        }
      }
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      if (job != null) {
        job.close();
      }
    }
  }

  /**
   * A streaming query's epochs. Each epoch becomes readable by one store, and the query's record
   * names the last epoch, so that an epoch that Spark writes again is readable only once.
   */
  private final class RingStreamingWrite implements StreamingWrite {
    private RingJob job;

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
      if (job != null) {
        job.close(); // the last epoch's job, if Spark neither committed nor aborted that epoch
      }
      job = new RingJob(options);
      return job.writers(info.schema());
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      List<RingJob.StagedFile> files = RingJob.StagedFile.of(messages);
      try (RingJob committing = job) {
        job = null;
        SinkRecord record = committing.record(info.queryId());
        if (isPublished(record, committing.ring, epoch)) {
          return;
        }
        if (!committing.fitsAtOnce(files)) {
          throw new IllegalStateException(
              String.format(
                  "epoch %d takes more than half of ring \"%s\" and cannot become readable at once;"
                      + " give the query smaller batches, or create the ring with more slots",
                  epoch, options.ring()));
        }
        long[] begun = {0};
        committing.publishAtOnce(
            files,
            id -> {
              begun[0] = id;
              record.write(epoch, id, false);
            });
        record.write(epoch, begun[0], true);
        metrics.published(files);
      }
    }

    /**
     * Returns whether an epoch is already in the ring. commit() records the epoch's claim,
     * publishes it, and records the publication. If the driver was killed between the two records,
     * the slot at the claim's sequence shows whether the claim was published. If later messages
     * have used that slot again, the option inDoubt decides.
     */
    private boolean isPublished(SinkRecord record, Ring ring, long epoch) {
      Optional<Entry> last = record.read();
      if (last.isEmpty()) {
        return ring.info().firstSequence() > 0 && isInJournal(record, ring, epoch);
      }
      Entry entry = last.get();
      if (entry.epoch() != epoch || entry.done()) {
        return entry.epoch() >= epoch;
      }
      return switch (Internals.fate(ring, entry.sequence())) {
        case PUBLISHED -> true;
        case NOT_PUBLISHED -> false;
        case UNKNOWN ->
            skipInDoubt(
                String.format(
                    "ring \"%s\": the process that published epoch %d was killed at that moment,"
                        + " and sequence %d, which would show whether it did, was used again since",
                    ring.name(), entry.epoch(), entry.sequence()));
      };
    }

    /**
     * Returns whether to skip the first epoch written to a restored ring, because the journal may
     * have the epoch already. The query's record was lost together with the ring that the restored
     * ring replaces, so only the option inDoubt can decide.
     */
    private boolean isInJournal(SinkRecord record, Ring ring, long epoch) {
      long first = ring.info().firstSequence();
      boolean skips =
          skipInDoubt(
              String.format(
                  "ring \"%s\" was restored at sequence %d, and has no record of this query: its"
                      + " journal may have epoch %d already. Look there (a new query's epochs are in"
                      + " no journal)",
                  ring.name(), first, epoch));
      if (skips) {
        // Because of this record, isPublished() need not ask the option inDoubt about later epochs.
        record.write(epoch, first, true);
      }
      return skips;
    }

    private boolean skipInDoubt(String doubt) {
      if (options.inDoubt().equals("fail")) {
        throw new IllegalStateException(
            doubt
                + ". Restart with .option(\"inDoubt\", \"skip\") or"
                + " .option(\"inDoubt\", \"write\")");
      }
      return options.inDoubt().equals("skip");
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
      if (job != null) {
        job.close();
        job = null;
      }
    }
  }

  /** Counters of a job, or of a stream's last epoch, for Spark's UI and progress. */
  public static final class WriteMetrics {
    // CHANGE: edit this for a new metric
    private static final String ROWS = "ringRowsWritten";
    private static final String MESSAGES = "ringMessagesWritten";
    private static final String BYTES = "ringBytesWritten";

    private long rows;
    private long messages;
    private long bytes;

    synchronized void published(List<RingJob.StagedFile> files) {
      rows = files.stream().mapToLong(RingJob.StagedFile::rows).sum();
      messages = files.stream().mapToLong(file -> file.lengths().length).sum();
      bytes = files.stream().flatMapToInt(file -> Arrays.stream(file.lengths())).asLongStream().sum();
    }

    synchronized CustomTaskMetric[] values() {
      return new CustomTaskMetric[] {
        new Value(ROWS, rows), new Value(MESSAGES, messages), new Value(BYTES, bytes)
      };
    }

    public Map<String, String> progress() {
      return Arrays.stream(values())
          .collect(Collectors.toMap(CustomTaskMetric::name, one -> Long.toString(one.value())));
    }

    static CustomMetric[] supported() {
      return new CustomMetric[] {new Rows(), new Messages(), new Bytes()};
    }

    public static final class Rows extends RingMetric {
      public Rows() {
        super(ROWS, "rows written to the ring");
      }
    }

    public static final class Messages extends RingMetric {
      public Messages() {
        super(MESSAGES, "messages written to the ring");
      }
    }

    public static final class Bytes extends RingMetric {
      public Bytes() {
        super(BYTES, "bytes of messages written to the ring");
      }
    }
  }
}
