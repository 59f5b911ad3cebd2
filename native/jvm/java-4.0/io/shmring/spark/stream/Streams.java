package io.shmring.spark.stream;

import io.shmring.spark.read.ReadOptions;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Makes the stream of a jar that is made with Spark 4.0, which has no real-time mode. */
public final class Streams {
  private Streams() {}

  public static MicroBatchStream of(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    return new BranchStream(schema, columns, options, checkpoint);
  }
}
