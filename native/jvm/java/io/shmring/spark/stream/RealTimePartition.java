package io.shmring.spark.stream;

import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.PlacedPartition;
import io.shmring.spark.stream.RingOffset.Position;

/** A ring that a task reads from a position on, for as long as its batch lasts. */
record RealTimePartition(RingPlace place, Position start) implements PlacedPartition {}
