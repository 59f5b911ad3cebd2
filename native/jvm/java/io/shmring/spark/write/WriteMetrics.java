package io.shmring.spark.write;

import io.shmring.spark.job.RingMetric;
import io.shmring.spark.job.RingMetric.Value;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Counters of a job, or of a stream's last epoch, for Spark's UI and progress. */
public final class WriteMetrics {
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
