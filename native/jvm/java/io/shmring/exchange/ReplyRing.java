package io.shmring.exchange;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.File;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;
import java.util.function.LongFunction;

/**
 * Ring for the answers to one client. Only the client reads it. sidecars/rings.py explains its
 * size.
 */
final class ReplyRing implements AutoCloseable {
  private static final File MEMORY = new File("/dev/shm");

  /**
   * First size of a reply ring, unless the user sets one; REPLY in sidecars/rings.py is the same
   * number. The client replaces the ring by a larger one if its requests need more room.
   */
  static final long FIRST_SLOTS = 4096;

  static final long LEAST_SLOTS = 1024;
  private static final long MOST_SLOTS = 65_536;
  static final long SLOT_COST = 332; // file bytes of a slot: 300 of payload, 32 of control data

  /** Divisor: a reply ring takes at most 1/32 of the free memory, so that later rings find room. */
  private static final int PART = 32;

  /** Divisor: memory is short, and no ring is kept for later tasks, if less than 1/8 is free. */
  private static final int SHORT = 8;

  private final Ring ring;
  private final Consumer inbox;
  private long position; // sequence after the last message taken

  private ReplyRing(Ring ring) {
    this.ring = ring;
    try {
      this.inbox =
          ring.consumer("client", BranchOptions.EARLIEST.asExclusive(), "client");
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  /**
   * Makes a ring, with fewer slots if memory is short. Returns empty if there is not even memory
   * for `least` slots.
   */
  static Optional<ReplyRing> make(String sidecar, long least, long wish) {
    String unique = UUID.randomUUID().toString().replace("-", "").substring(0, 12);
    String name =
        String.format("reply.%s.%d-%s", sidecar, ProcessHandle.current().pid(), unique);
    return largest(
        least, fitting(wish), slots -> new ReplyRing(Ring.createTemporary(name, slots)));
  }

  /**
   * Makes a ring of `wish` slots. While memory does not suffice, halves the size, down to `least`
   * slots: other processes may have taken memory since it was measured.
   */
  static <T> Optional<T> largest(long least, long wish, LongFunction<T> make) {
    for (long slots = Math.max(least, wish); ; slots = Math.max(least, slots / 2)) {
      try {
        return Optional.of(make.apply(slots));
      } catch (RingException error) {
        if (error.status() != Status.NO_SPACE) {
          throw error;
        }
      }
      if (slots == least) {
        return Optional.empty();
      }
    }
  }

  /**
   * Returns the number of slots for a ring: the smallest power of two that is not below `wish`,
   * from LEAST_SLOTS to MOST_SLOTS. The number is smaller if the ring would take more memory than
   * one reply ring may.
   */
  static long fitting(long wish) {
    long most = Math.min(MEMORY.getUsableSpace() / PART / SLOT_COST, MOST_SLOTS);
    long slots = LEAST_SLOTS;
    while (slots < wish && 2 * slots <= most) {
      slots *= 2;
    }
    return slots;
  }

  static boolean isMemoryShort() {
    return MEMORY.getUsableSpace() < MEMORY.getTotalSpace() / SHORT;
  }

  static RingException noMemory(long slots, Client.Timeouts timeouts) {
    return new RingException(
        Status.NO_SPACE,
        "%s has %d of %d MB left, and a ring of %d slots needs %.1f MB (waited %s s,"
            + " connect_timeout=...); give it more (docker run --shm-size=1g; in Kubernetes an"
            + " emptyDir of medium Memory)%s, or let fewer tasks run at a time",
        MEMORY, MEMORY.getUsableSpace() >> 20, MEMORY.getTotalSpace() >> 20, slots,
        slots * SLOT_COST / 1048576.0, Client.Timeouts.text(timeouts.connectTimeout()),
        slots > LEAST_SLOTS ? ", make the ring smaller with reply_slots=... of through()" : "");
  }

  String name() {
    return ring.name();
  }

  long slots() {
    return ring.info().slots();
  }

  /** Returns the next answer; empty if no answer came in time. */
  Optional<Lease> poll(Duration timeout) throws InterruptedException {
    Optional<Lease> taken = inbox.poll(timeout);
    taken.ifPresent(lease -> position = lease.end());
    return taken;
  }

  /**
   * Returns the number of slots that workers may fill before the client has to release held
   * messages.
   *
   * @param held the lowest sequence that the client holds; if it holds none, a number above all
   *     taken sequences
   */
  long room(long held) {
    return slots() - Math.max(0, position - held);
  }

  /** Removes the ring. Answers that come later are dropped. */
  @Override
  public void close() {
    inbox.close();
    ring.close();
  }
}
