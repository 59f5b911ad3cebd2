package io.shmring.sidecar;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.nio.file.FileStore;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.UUID;

/** The ring for a client's answers, which has no other reader. Sizes are chosen as in sidecars/sizes.py. */
final class ReplyRing implements AutoCloseable {
  private static final Path MEMORY = Path.of("/dev/shm");
  private static final long USUAL_SLOTS = 65_536;
  private static final long LEAST_SLOTS = 1024;
  private static final long SLOT_COST = 332;

  /** A ring whose size nobody says takes at most one such part of the free memory. */
  private static final int PART = 8;

  private final Ring ring;
  private final Consumer inbox;
  private long position; // the end of what was taken

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
   * @param slots 0: as many as leave others room
   */
  static ReplyRing make(String sidecar, long slots) {
    String unique = UUID.randomUUID().toString().replace("-", "").substring(0, 12);
    String name =
        String.format("reply.%s.%d-%s", sidecar, ProcessHandle.current().pid(), unique);
    if (slots > 0) {
      return new ReplyRing(create(name, slots));
    }
    for (long fitting = fitting(); fitting > LEAST_SLOTS; fitting /= 2) {
      try {
        return new ReplyRing(Ring.createTemporary(name, fitting));
      } catch (RingException error) {
        if (error.status() != Status.NO_SPACE) { // others were faster
          throw error;
        }
      }
    }
    return new ReplyRing(create(name, LEAST_SLOTS));
  }

  private static Ring create(String name, long slots) {
    try {
      return Ring.createTemporary(name, slots);
    } catch (RingException error) {
      if (error.status() != Status.NO_SPACE) {
        throw error;
      }
      throw new RingException(
          Status.NO_SPACE,
          String.format(
              "%s has %d MB left, and a ring of %d slots needs %.1f MB: give it more (docker run"
                  + " --shm-size=1g; in Kubernetes an emptyDir of medium Memory), or make the ring"
                  + " smaller with reply_slots=... of through()",
              MEMORY, free() >> 20, slots, slots * SLOT_COST / 1048576.0));
    }
  }

  private static long fitting() {
    long most = free() / PART;
    long slots = USUAL_SLOTS;
    while (slots > LEAST_SLOTS && slots * SLOT_COST > most) {
      slots /= 2;
    }
    return slots;
  }

  private static long free() {
    try {
      FileStore store = Files.getFileStore(MEMORY);
      return store.getUsableSpace();
    } catch (IOException error) {
      return 0;
    }
  }

  String name() {
    return ring.name();
  }

  long slots() {
    return ring.info().slots();
  }

  /** The next answer; empty if there was none in time. */
  Optional<Lease> poll(Duration timeout) throws InterruptedException {
    Optional<Lease> taken = inbox.poll(timeout);
    taken.ifPresent(lease -> position = lease.end());
    return taken;
  }

  /**
   * Slots that workers may fill before what is held has to go.
   *
   * @param held the lowest sequence that is held, or anything above what was taken
   */
  long room(long held) {
    return slots() - Math.max(0, position - held);
  }

  /** Removes the ring: answers that are still to come find none. */
  @Override
  public void close() {
    inbox.close();
    ring.close();
  }
}
