package io.shmring.spark.stream;

import io.shmring.spark.read.ReadPlan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;

/** Makes the stream of a jar that is made with Spark 4.0, which has no real-time mode. */
public final class Streams {
  private Streams() {}

  public static MicroBatchStream of(ReadPlan plan, String checkpoint) {
    return new BranchStream(plan, checkpoint);
  }
}
