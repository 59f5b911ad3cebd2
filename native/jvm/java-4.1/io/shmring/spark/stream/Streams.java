package io.shmring.spark.stream;

import io.shmring.spark.read.ReadOptions;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** Makes the stream that the running Spark can load: 4.0 knows no real-time mode. */
public final class Streams {
  private Streams() {}

  public static MicroBatchStream of(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    return hasRealTimeMode()
        ? RealTimeStream.of(schema, columns, options, checkpoint)
        : new BranchStream(schema, columns, options, checkpoint);
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
