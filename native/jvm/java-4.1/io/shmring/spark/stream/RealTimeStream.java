package io.shmring.spark.stream;

import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.stream.RingOffset.Position;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.types.StructType;

/** The stream for Spark 4.1 and later, which can also be read in real-time mode. */
final class RealTimeStream extends BranchStream implements SupportsRealTimeMode {
  private RealTimeStream(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    super(schema, columns, options, checkpoint);
  }

  static MicroBatchStream of(
      StructType schema, int[] columns, ReadOptions options, String checkpoint) {
    return new RealTimeStream(schema, columns, options, checkpoint);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new RealTimeReaderFactory((RangeReaderFactory) super.createReaderFactory());
  }

  @Override
  public InputPartition[] planInputPartitions(Offset from) {
    RingOffset start = RingOffset.of(from);
    return options().rings().stream()
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
