package io.shmring.spark.stream;

import io.shmring.spark.read.ReadPlan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;

/** Makes the stream that the running Spark can load: 4.0 knows no real-time mode. */
public final class Streams {
  private Streams() {}

  public static MicroBatchStream of(ReadPlan plan, String checkpoint) {
    return hasRealTimeMode()
        ? RealTimeStream.of(plan, checkpoint)
        : new BranchStream(plan, checkpoint);
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
