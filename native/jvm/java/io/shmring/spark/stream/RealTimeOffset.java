package io.shmring.spark.stream;

import io.shmring.spark.stream.RingOffset.Position;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** Where a task of a real-time batch stands in its ring. */
record RealTimeOffset(String ring, Position position) implements PartitionOffset {}
