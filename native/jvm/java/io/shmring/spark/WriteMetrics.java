package io.shmring.spark;

import io.shmring.spark.ReadMetrics.Value;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a job has brought into its ring, or a stream's last epoch, for Spark's UI and progress. */
final class WriteMetrics {
  private static final String ROWS = "ringRowsWritten";
  private static final String MESSAGES = "ringMessagesWritten";
  private static final String BYTES = "ringBytesWritten";

  private long rows;
  private long messages;
  private long bytes;

  synchronized void published(List<StagedFile> files) {
    rows = files.stream().mapToLong(StagedFile::rows).sum();
    messages = files.stream().mapToLong(file -> file.lengths().length).sum();
    bytes = files.stream().flatMapToInt(file -> Arrays.stream(file.lengths())).asLongStream().sum();
  }

  synchronized CustomTaskMetric[] values() {
    return new CustomTaskMetric[] {
      new Value(ROWS, rows), new Value(MESSAGES, messages), new Value(BYTES, bytes)
    };
  }

  Map<String, String> progress() {
    return Arrays.stream(values())
        .collect(Collectors.toMap(CustomTaskMetric::name, one -> Long.toString(one.value())));
  }

  static CustomMetric[] supported() {
    return new CustomMetric[] {new Rows(), new Messages(), new Bytes()};
  }

  /** Spark makes these by their names. */
  public static final class Rows extends CustomSumMetric {
    @Override
    public String name() {
      return ROWS;
    }

    @Override
    public String description() {
      return "rows written to the ring";
    }
  }

  public static final class Messages extends CustomSumMetric {
    @Override
    public String name() {
      return MESSAGES;
    }

    @Override
    public String description() {
      return "messages written to the ring";
    }
  }

  public static final class Bytes extends CustomSumMetric {
    @Override
    public String name() {
      return BYTES;
    }

    @Override
    public String description() {
      return "bytes of messages written to the ring";
    }
  }
}
