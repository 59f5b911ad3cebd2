package io.shmring.spark;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The reads of a DataFrame, which all of its plans share. */
final class RingReads {
  private final Map<Key, RingRead> reads = new ConcurrentHashMap<>();

  private record Key(RingPlace place, String branch) {}

  RingRead of(RingPlace place, String branch) {
    return reads.computeIfAbsent(new Key(place, branch), first -> new RingRead());
  }
}
