package io.shmring.spark.write;

import io.shmring.spark.columns.RingTypes;
import java.util.Arrays;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A write of rows into a ring; updates of a stream are appended. */
public final class RingWrite implements SupportsStreamingUpdateAsAppend, Write {
  private final LogicalWriteInfo info;
  private final WriteOptions options;
  private final WriteMetrics metrics;
  private boolean streams;

  /**
   * @param table the columns of the ring
   * @param metrics that count the rows written
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

  /** None for a stream: Spark would show zeros, as it never asks the driver; the progress has them. */
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
    return new RingBatchWrite(options, info.schema(), metrics);
  }

  @Override
  public StreamingWrite toStreaming() {
    streams = true;
    return new RingStreamingWrite(options, info.schema(), info.queryId(), metrics);
  }
}
