package io.shmring;

import java.time.Duration;
import java.util.Optional;

/** Calls that shmring's own packages need beyond the API; they may change in any version. */
public final class Internals {
  private Internals() {}

  /** How far a take of messages would reach. */
  public record Reach(long end, int messages) {}

  /** What became of a claim, by the sequence at which it began. */
  public enum Fate {
    /** A message begins there. */
    PUBLISHED,
    /** It was not published, and will not be unless its producer lives. */
    NOT_PUBLISHED,
    /** Its slot may have been used again since. */
    UNKNOWN
  }

  /** {@link Consumer#takeEnds}. */
  public static void takeEnds(Consumer consumer) {
    consumer.takeEnds();
  }

  /** {@link Consumer#hearEnds}. */
  public static void hearEnds(Consumer consumer, long since) {
    consumer.hearEnds(since);
  }

  /** {@link Consumer#advance}. */
  public static void advance(Consumer consumer, String branch, long sequence)
      throws InterruptedException {
    consumer.advance(branch, sequence);
  }

  /** {@link Producer#claimAligned}. */
  public static Optional<Claim> claimAligned(
      Producer producer, long length, long align, Duration timeout) throws InterruptedException {
    return producer.claimAligned(length, align, timeout);
  }

  /** {@link Ring#measure}. */
  public static Reach measure(Ring ring, long from, long limit, int maxMessages, long maxSlots) {
    return ring.measure(from, limit, maxMessages, maxSlots);
  }

  /** {@link Ring#fate}. */
  public static Fate fate(Ring ring, long sequence) {
    return ring.fate(sequence);
  }

  /** {@link Ring#slotAndReferences}. */
  public static long[] slotAndReferences(Ring ring, long id) {
    return ring.slotAndReferences(id);
  }
}
