package io.shmring.spark.stream;

import io.shmring.spark.read.ColumnarReaders;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.stream.RingOffset.Position;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;

/** The stream for Spark 4.1 and later, which can also be read in real-time mode. */
final class RealTimeStream extends BranchStream implements SupportsRealTimeMode {
  private RealTimeStream(ReadPlan plan, String checkpoint) {
    super(plan, checkpoint);
  }

  /** Returns what Spark 4.0 knows too: there the verifier must not look for this class. */
  static MicroBatchStream of(ReadPlan plan, String checkpoint) {
    return new RealTimeStream(plan, checkpoint);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new RealTimeReaderFactory(new ColumnarReaders(plan()));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset from) {
    if (!plan().options().journal().isEmpty()) {
      throw new IllegalArgumentException(
          "option journal is for micro-batches: in real-time mode a stream reads the ring alone");
    }
    RingOffset start = RingOffset.of(from);
    return plan().options().rings().stream()
        .map(name -> open(name, start.position(name)).realTime(start.position(name)))
        .toArray(InputPartition[]::new);
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    Map<String, Position> positions = new TreeMap<>();
    for (PartitionOffset offset : offsets) {
      RealTimeOffset ours = (RealTimeOffset) offset;
      positions.put(ours.ring(), ours.position());
    }
    return new RingOffset(positions);
  }
}
