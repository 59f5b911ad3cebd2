package io.shmring.spark;

import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Makes the stream of a jar that is made with Spark 4.0, which has no real-time mode. */
final class Streams {
  private Streams() {}

  static MicroBatchStream of(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    return new ShmringStream(schema, columns, options, checkpoint);
  }
}
