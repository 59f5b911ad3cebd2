package io.shmring.spark;

import io.shmring.spark.read.ReadMetrics;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.RingBatch;
import io.shmring.spark.read.RingReads;
import io.shmring.spark.stream.BranchStream;
import java.util.Arrays;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** A read of some columns of some rings. */
final class ShmringScan implements Scan {
  private final ReadPlan plan;
  private final RingReads reads;

  ShmringScan(ReadPlan plan, RingReads reads) {
    this.plan = plan;
    this.reads = reads;
  }

  @Override
  public StructType readSchema() {
    return plan.wanted();
  }

  @Override
  public String description() {
    return "shmring "
        + String.join(", ", options().rings())
        + " "
        + Arrays.toString(readSchema().fieldNames());
  }

  ReadOptions options() {
    return plan.options();
  }

  @Override
  public Batch toBatch() {
    return new RingBatch(plan, reads);
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return new BranchStream(plan, checkpointLocation);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return ReadMetrics.supported();
  }
}
