package io.shmring.spark;

import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Makes the stream that the running Spark can load: 4.0 knows no real-time mode. */
final class Streams {
  private Streams() {}

  static MicroBatchStream of(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    return hasRealTimeMode()
        ? RealTimeStream.of(schema, columns, options, checkpoint)
        : new ShmringStream(schema, columns, options, checkpoint);
  }

  private static boolean hasRealTimeMode() {
    String name = "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode";
    try {
      Class.forName(name, false, MicroBatchStream.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException error) {
      return false;
    }
  }
}
