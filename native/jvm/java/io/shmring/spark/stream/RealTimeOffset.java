package io.shmring.spark.stream;

import io.shmring.spark.stream.RingOffset.Position;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** The position of a task of a real-time batch in its ring. */
record RealTimeOffset(String ring, Position position) implements PartitionOffset {}
