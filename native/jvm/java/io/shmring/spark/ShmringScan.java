package io.shmring.spark;

import io.shmring.spark.read.ReadMetrics;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.RingBatch;
import io.shmring.spark.read.RingReads;
import io.shmring.spark.stream.Streams;
import java.util.Arrays;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A read of some columns of some rings. */
final class ShmringScan implements Scan {
  private final StructType schema;
  private final int[] columns;
  private final ReadOptions options;
  private final RingReads reads;

  ShmringScan(StructType schema, int[] columns, ReadOptions options, RingReads reads) {
    this.schema = schema;
    this.columns = columns;
    this.options = options;
    this.reads = reads;
  }

  @Override
  public StructType readSchema() {
    StructField[] fields = schema.fields();
    return new StructType(
        Arrays.stream(columns).mapToObj(i -> fields[i]).toArray(StructField[]::new));
  }

  @Override
  public String description() {
    return "shmring "
        + String.join(", ", options.rings())
        + " "
        + Arrays.toString(readSchema().fieldNames());
  }

  ReadOptions options() {
    return options;
  }

  @Override
  public Batch toBatch() {
    return new RingBatch(schema, columns, options, reads);
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return Streams.of(schema, columns, options, checkpointLocation);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ReadMetrics.supported();
  }
}
