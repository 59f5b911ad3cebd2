package io.shmring;

import java.time.Duration;
import java.util.Optional;

/** Calls that shmring's own packages need beyond the API; they may change in any version. */
public final class Internals {
  private Internals() {}

  /** The end of a take of messages, and their number. */
  public record Reach(long end, int messages) {}

  /** The fate of a claim, by the sequence at which it began. */
  public enum Fate {
    /** A message begins there. */
    PUBLISHED,
    /** It was not published, and will not be unless its producer lives. */
    NOT_PUBLISHED,
    /** Its slot may have been used again since. */
    UNKNOWN
  }

  /** Calls {@link Consumer#takeEnds}. */
  public static void takeEnds(Consumer consumer) {
    consumer.takeEnds();
  }

  /** Calls {@link Consumer#hearEnds}. */
  public static void hearEnds(Consumer consumer, long since) {
    consumer.hearEnds(since);
  }

  /** Calls {@link Consumer#advance}. */
  public static void advance(Consumer consumer, String branch, long sequence)
      throws InterruptedException {
    consumer.advance(branch, sequence);
  }

  /** Calls {@link Producer#claimAligned}. */
  public static Optional<Claim> claimAligned(
      Producer producer, long length, long align, Duration timeout) throws InterruptedException {
    return producer.claimAligned(length, align, timeout);
  }

  /** Calls {@link Ring#measure}. */
  public static Reach measure(Ring ring, long from, long limit, int maxMessages, long maxSlots) {
    return ring.measure(from, limit, maxMessages, maxSlots);
  }

  /** Calls {@link Ring#fate}. */
  public static Fate fate(Ring ring, long sequence) {
    return ring.fate(sequence);
  }

  /** Calls {@link Ring#slotAndReferences}. */
  public static long[] slotAndReferences(Ring ring, long id) {
    return ring.slotAndReferences(id);
  }
}
