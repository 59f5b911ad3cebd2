package io.shmring.spark.read;

import io.shmring.spark.job.RingPlace;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The reads of a DataFrame, which all of its plans share. */
public final class RingReads {
  /** Advice for users whose DataFrame cannot be read twice. */
  public static final String WAYS_OUT =
      "Use .cache() or .localCheckpoint() before a DataFrame is used more than once, load another"
          + " one for the messages that have come since, or give each use a branch of its own";

  private final Map<Key, RingRead> reads = new ConcurrentHashMap<>();

  private record Key(RingPlace place, String branch) {}

  RingRead of(RingPlace place, String branch) {
    return reads.computeIfAbsent(new Key(place, branch), first -> new RingRead());
  }
}
