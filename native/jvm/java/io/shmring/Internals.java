package io.shmring;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/** Calls that shmring's own packages need beyond the API. They may change in any version. */
public final class Internals {
  private static final int MOST_BRANCHES = Long.SIZE; // 64: the C library has a bit for each
  private static final String JOURNAL = "journal"; // name of the branch of a ring's journal

  private Internals() {}

  /** The sequence where a take would end, and the number of its messages. */
  public record Reach(long end, int messages) {}

  /** The fate of a claim, found by the sequence where the claim began. */
  public enum Fate {
    /** A message begins at the sequence. */
    PUBLISHED,
    /** The claim was not published, and only a producer that still lives may publish it. */
    NOT_PUBLISHED,
    /** The slot may have been used again since the claim. */
    UNKNOWN
  }

  /**
   * Lets a consumer deliver end markers as messages ({@link Message#isEnd}), for programs that pass
   * messages on or hand them back. If another consumer of the branch reaches an end marker first,
   * this consumer still throws {@link EndOfStreamException}.
   */
  public static void takeEnds(Consumer consumer) {
    synchronized (consumer) {
      Native.takeEnds(consumer.handle());
    }
  }

  /**
   * Makes a consumer report all end markers of its branch except the first `since`, as if the
   * consumer had joined when {@link BranchInfo#ends} was `since`. Call this before the first take.
   */
  public static void hearEnds(Consumer consumer, long since) {
    synchronized (consumer) {
      Native.hearEnds(consumer.handle(), since);
    }
  }

  /**
   * Returns the names of the ring's branches that stay without consumers; leaves out the branch
   * of its journal.
   */
  public static List<String> branches(Ring ring) {
    List<String> names = new ArrayList<>();
    synchronized (ring) {
      for (int id = 0; id < MOST_BRANCHES; id++) {
        byte[] name = Native.lastingBranch(ring.handle(), id);
        if (name != null) {
          names.add(new String(name, StandardCharsets.UTF_8));
        }
      }
    }
    names.remove(JOURNAL);
    return names;
  }

  /** Returns the next sequence that a consumer's branch will take. */
  public static long position(Consumer consumer) {
    return consumer.ring().branch(consumer.branch).map(BranchInfo::position).orElseThrow();
  }

  /**
   * Moves a consumer's branch to `sequence`, and releases the messages before it unread. The
   * sequence must be the end of a message. If a branch with dropOldest has already lost these
   * messages, and messages after them, the branch is beyond `sequence`, and stays there.
   */
  public static void advance(Consumer consumer, long sequence) throws InterruptedException {
    Ring ring = consumer.ring();
    synchronized (consumer) {
      while (true) {
        long position = ring.branch(consumer.branch).map(BranchInfo::position).orElse(sequence);
        if (position >= sequence) {
          return;
        }
        // CHANGE: edit this for a new error
        try {
          int messages = messages(ring, position, sequence);
          if (messages == 0) {
            return; // all slots up to `sequence` belong to aborted claims
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
        // The message was overwritten meanwhile: the caller takes one message, and gets an
        // OverrunException.
        return 1;
      }
      throw error;
    }
  }

  /**
   * Measures how far a take would reach, without taking messages.
   *
   * @param from sequence where the take would begin; the position of some branch must be `from` or
   *     less, so that the messages are still in the ring
   * @param limit sequence where the take would end at the latest; at most
   *     {@link Consumer#available()}
   */
  public static Reach measure(Ring ring, long from, long limit, int maxMessages, long maxSlots) {
    long[] words = new long[2];
    synchronized (ring) {
      Native.measure(ring.handle(), from, limit, maxMessages, maxSlots, words);
    }
    return new Reach(words[0], (int) words[1]);
  }

  /** Returns what became of the claim that began at a sequence. */
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
   * Returns three numbers for a held message: its slot number, the number of branches that still
   * have to release it, and 1 if a message begins at `id`, else 0.
   */
  public static long[] slotAndReferences(Ring ring, long id) {
    long[] words = new long[3];
    synchronized (ring) {
      Native.row(ring.handle(), id, words);
    }
    return words;
  }
}
