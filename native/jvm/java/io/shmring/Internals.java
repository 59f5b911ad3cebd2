package io.shmring;

import java.time.Duration;

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

  /**
   * Delivers an end marker that a consumer reaches first as a message ({@link Message#isEnd}), for
   * programs that pass messages on or hand them back. Other ends throw as before.
   */
  public static void takeEnds(Consumer consumer) {
    synchronized (consumer) {
      Native.takeEnds(consumer.handle());
    }
  }

  /**
   * Reports to a consumer the ends of the stream since the branch had reached `since` of them ({@link
   * BranchInfo#ends}), as if it had joined then. Call it before the first take.
   */
  public static void hearEnds(Consumer consumer, long since) {
    synchronized (consumer) {
      Native.hearEnds(consumer.handle(), since);
    }
  }

  /** Where a consumer's branch stands. */
  public static long position(Consumer consumer) {
    return consumer.ring().branch(consumer.branch).map(BranchInfo::position).orElseThrow();
  }

  /**
   * Moves a consumer's branch to `sequence`, which is the end of a message, and releases the messages
   * before it unread. A branch with dropOldest may have lost these, and more.
   */
  public static void advance(Consumer consumer, long sequence) throws InterruptedException {
    Ring ring = consumer.ring();
    synchronized (consumer) {
      while (true) {
        long position = ring.branch(consumer.branch).map(BranchInfo::position).orElse(sequence);
        if (position >= sequence) {
          return;
        }
        try {
          int messages = messages(ring, position, sequence);
          if (messages == 0) {
            return; // nothing but aborted claims
          }
          consumer.poll(messages, sequence - position, Duration.ZERO).ifPresent(Lease::close);
        } catch (OverrunException moved) {
          continue;
        }
      }
    }
  }

  private static int messages(Ring ring, long from, long end) {
    try {
      return measure(ring, from, end, Integer.MAX_VALUE, end - from).messages();
    } catch (RingException error) {
      if (ring.floor() > from) {
        return 1; // overwritten while it was looked at: the take will be overrun
      }
      throw error;
    }
  }

  /**
   * Measures how far a take would reach, without taking anything.
   *
   * @param from where it would begin; a branch must stand there or before
   * @param limit where it would end at the latest, at most {@link Consumer#available()}
   */
  public static Reach measure(Ring ring, long from, long limit, int maxMessages, long maxSlots) {
    long[] words = new long[2];
    synchronized (ring) {
      Native.measure(ring.handle(), from, limit, maxMessages, maxSlots, words);
    }
    return new Reach(words[0], (int) words[1]);
  }

  /** What became of the claim that began at a sequence. */
  public static Fate fate(Ring ring, long sequence) {
    synchronized (ring) {
      ring.recover();
      if (slotAndReferences(ring, sequence)[2] != 0) {
        return Fate.PUBLISHED;
      }
      return ring.floor() > sequence ? Fate.UNKNOWN : Fate.NOT_PUBLISHED;
    }
  }

  /**
   * The slot number of a held message, the number of branches that still have to release it, and
   * whether there is one: 1 or 0.
   */
  public static long[] slotAndReferences(Ring ring, long id) {
    long[] words = new long[3];
    synchronized (ring) {
      Native.row(ring.handle(), id, words);
    }
    return words;
  }
}
