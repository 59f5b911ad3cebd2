package io.shmring.spark.write;

import java.util.List;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * A batch job. Its rows become readable when it commits: by one store if they take at most half of
 * the ring, otherwise message by message while the commit runs.
 */
final class RingBatchWrite implements BatchWrite {
  private final WriteOptions options;
  private final StructType schema;
  private final WriteMetrics metrics;
  private RingJob job;

  RingBatchWrite(WriteOptions options, StructType schema, WriteMetrics metrics) {
    this.options = options;
    this.schema = schema;
    this.metrics = metrics;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    job = new RingJob(options);
    return job.writers(schema);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    List<StagedFile> files = StagedFile.of(messages);
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
