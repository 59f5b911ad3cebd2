package io.shmring.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What a task has read so far, for Spark's UI. */
final class ReadMetrics {
  private static final String MESSAGES = "ringMessages";
  private static final String BYTES = "ringBytes";
  private static final String WAITS = "ringWaits";

  private long messages;
  private long bytes;
  private long waits;

  void count(long moreMessages, long moreBytes) {
    messages += moreMessages;
    bytes += moreBytes;
  }

  void waited() {
    waits++;
  }

  CustomTaskMetric[] values() {
    return new CustomTaskMetric[] {
      new Value(MESSAGES, messages), new Value(BYTES, bytes), new Value(WAITS, waits)
    };
  }

  static CustomMetric[] supported() {
    return new CustomMetric[] {new Messages(), new Bytes(), new Waits()};
  }

  record Value(String name, long value) implements CustomTaskMetric {}

  /** Spark makes these by their names. */
  public static final class Messages extends CustomSumMetric {
    @Override
    public String name() {
      return MESSAGES;
    }

    @Override
    public String description() {
      return "messages taken from rings";
    }
  }

  public static final class Bytes extends CustomSumMetric {
    @Override
    public String name() {
      return BYTES;
    }

    @Override
    public String description() {
      return "bytes of messages taken from rings";
    }
  }

  public static final class Waits extends CustomSumMetric {
    @Override
    public String name() {
      return WAITS;
    }

    @Override
    public String description() {
      return "waits for an empty ring";
    }
  }
}
