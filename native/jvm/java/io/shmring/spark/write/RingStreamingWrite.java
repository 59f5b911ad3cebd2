package io.shmring.spark.write;

import io.shmring.Internals;
import io.shmring.Ring;
import io.shmring.spark.write.SinkRecord.Entry;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/**
 * A streaming query's epochs. Each becomes readable by one store, and the query's record has the last
 * one: an epoch that Spark writes again is readable once.
 */
final class RingStreamingWrite implements StreamingWrite {
  private final WriteOptions options;
  private final StructType schema;
  private final String query;
  private final WriteMetrics metrics;
  private RingJob job;

  RingStreamingWrite(
      WriteOptions options, StructType schema, String query, WriteMetrics metrics) {
    this.options = options;
    this.schema = schema;
    this.query = query;
    this.metrics = metrics;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    if (job != null) {
      job.close(); // of an epoch that was neither committed nor aborted
    }
    job = new RingJob(options);
    return job.writers(schema);
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    List<StagedFile> files = StagedFile.of(messages);
    try (RingJob committing = job) {
      job = null;
      SinkRecord record = new SinkRecord(committing.ring(), query);
      if (isPublished(record, committing.ring(), epoch)) {
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

  /** Decides about an epoch whose record was written before, but not after, the store that publishes. */
  private boolean isPublished(SinkRecord record, Ring ring, long epoch) {
    Optional<Entry> last = record.read().filter(entry -> entry.epoch() >= epoch);
    if (last.isEmpty()) {
      return false;
    }
    Entry entry = last.get();
    if (entry.done() || entry.epoch() > epoch) {
      return true;
    }
    return switch (Internals.fate(ring, entry.sequence())) {
      case PUBLISHED -> true;
      case NOT_PUBLISHED -> false;
      case UNKNOWN -> inDoubt(ring, entry);
    };
  }

  private boolean inDoubt(Ring ring, Entry entry) {
    if (options.inDoubt().equals("fail")) {
      throw new IllegalStateException(
          String.format(
              "ring \"%s\": the process that published epoch %d was killed at that moment, and"
                  + " sequence %d, which would show whether it did, was used again since. Restart"
                  + " with .option(\"inDoubt\", \"skip\") or .option(\"inDoubt\", \"write\")",
              ring.name(), entry.epoch(), entry.sequence()));
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
