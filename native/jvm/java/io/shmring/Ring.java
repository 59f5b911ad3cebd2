package io.shmring;

import io.shmring.Participant.Role;
import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.UUID;
import java.util.function.Supplier;

/**
 * A ring on this host. Threads may share a ring. A {@link Producer} or {@link Consumer} serves one
 * thread at a time, which its lock ensures.
 *
 * <p>Closing a ring gives up its handle. Producers, consumers and
 * {@linkplain MappedMessage mapped messages} that are still open keep the memory mapped until they
 * are closed too.
 */
public final class Ring implements AutoCloseable {
  /** Bytes of a slot. */
  public static final int SLOT_BYTES = 300;

  /** The beginning of the path of a ring's file; the ring's name follows. */
  public static final String PREFIX = "/dev/shm/shmring.";

  private static final int READ_ONLY = 1;

  private final String label;
  private final Path path;
  private final long handle;
  private final RingInfo info;
  final Slots slots; // the slots in memory; users must keep the memory mapped
  // Number of open objects that use the handle: this ring, its producers, consumers, ranges and
  // mapped messages.
  private int users = 1;
  private final boolean temporary;
  private boolean closed;

  private Ring(String label, Path path, long handle, boolean temporary) {
    this.label = label;
    this.path = path;
    this.handle = handle;
    this.temporary = temporary;
    // CHANGE: edit this for a new option of a ring
    long[] words = new long[8];
    Native.info(handle, words);
    this.info =
        new RingInfo(
            words[0],
            (words[1] & 1) != 0,
            (words[1] & 2) != 0,
            (int) words[2],
            (int) words[3],
            (int) words[7],
            words[6],
            new UUID(words[4], words[5]));
    this.slots = new Slots(Native.slotAddress(handle, 0), 2 * info.slots() * SLOT_BYTES);
  }

  /**
   * Attaches to the ring with this name; a name with a slash is the path of a ring's file.
   *
   * @throws RingException if there is no such ring, or it cannot be used
   */
  public static Ring attach(String name) {
    return attach(name, 0);
  }

  /** Attaches only to observe the ring, without becoming a participant. */
  public static Ring attachReadOnly(String name) {
    return attach(name, READ_ONLY);
  }

  private static Ring attach(String name, int flags) {
    Path path = path(name);
    return new Ring(name, path, Native.attach(utf8(path.toString()), flags), false);
  }

  // CHANGE: edit this for a new option of a ring
  /**
   * Makes a ring that stays until its file is deleted.
   *
   * @param slots a power of two, at least 1,024
   * @param schema an Arrow schema as an IPC message; empty for a ring of bytes
   */
  public static void create(String name, long slots, byte[] schema) {
    create(name, slots, schema, false);
  }

  /**
   * Makes a ring, like {@link #create}, for one producer at a time: a second producer is refused
   * while the first one lives ({@link Status#SECOND_PRODUCER}).
   */
  public static void createSingleProducer(String name, long slots, byte[] schema) {
    create(name, slots, schema, true);
  }

  private static void create(String name, long slots, byte[] schema, boolean singleProducer) {
    // Check here, because the native call would end the JVM if the schema is null.
    Objects.requireNonNull(schema, "the schema is null; an empty array makes a ring of bytes");
    Native.create(utf8(path(name).toString()), slots, schema, singleProducer, false);
  }

  /**
   * Attaches to the ring, or makes a ring of bytes if there is none; several processes may call
   * this at once.
   *
   * @param slots a power of two, at least 1,024; an existing ring with fewer slots is refused ({@link
   *     Status#EXISTS})
   */
  public static Ring openOrCreate(String name, long slots) {
    Path path = path(name);
    return new Ring(name, path, Native.openOrCreate(utf8(path.toString()), slots), false);
  }

  /**
   * Makes a ring of bytes and attaches to it. The ring is removed when it is closed, or by `shmring
   * gc` when no living process is attached.
   *
   * @param slots a power of two, at least 1,024
   */
  public static Ring createTemporary(String name, long slots) {
    Path path = path(name);
    return new Ring(
        name, path, Native.create(utf8(path.toString()), slots, new byte[0], false, true), true);
  }

  /**
   * Removes the ring if all its participants are dead, like `shmring gc`; returns whether it was
   * removed.
   */
  public static boolean reap(String name) {
    return Native.reap(utf8(path(name).toString()));
  }

  /**
   * Returns the path of the ring with this name; a name with a slash is a path already.
   *
   * @throws RingException if a path does not end in the name of a file
   */
  public static Path path(String name) {
    if (name.contains("/")) {
      String file = name.substring(name.lastIndexOf('/') + 1);
      if (file.isEmpty() || file.equals(".") || file.equals("..")) {
        throw new RingException(
            Status.INVALID,
            "\"%s\" cannot be a ring's path: it has to end in the name of the ring's file",
            name);
      }
      Path path = Path.of(name).toAbsolutePath();
      // Keep "..": only the kernel knows where a symbolic link before it leads.
      return "/%s/".formatted(name).contains("/../") ? path : path.normalize();
    }
    return Path.of(new String(Native.pathOf(utf8(name)), StandardCharsets.UTF_8));
  }

  public String name() {
    return label;
  }

  public Path path() {
    return path;
  }

  public RingInfo info() {
    return info;
  }

  /** Returns the Arrow schema given at creation, as an IPC message; empty if there is none. */
  public synchronized byte[] schema() {
    return Native.schemaBytes(handle());
  }

  /** Returns the sequence that the next claim will get. */
  public synchronized long claimed() {
    return Native.claimed(handle());
  }

  /** Returns the lowest sequence that is still held; messages below it may be overwritten. */
  public synchronized long floor() {
    return Native.floor(handle());
  }

  /**
   * Explains in one sentence which process holds the producers back, since when, and what to do
   * about it.
   */
  public synchronized String whyFull() {
    return new String(Native.explainFull(handle()), StandardCharsets.UTF_8);
  }

  /** Clears away participants that died. Waiting processes do the same. */
  public synchronized void recover() {
    Native.recover(handle());
  }

  /** Opens a producer. Statistics show the producer by this name. */
  public Producer producer(String name) {
    return producer(name, WaitStrategy.DEFAULT);
  }

  /** Opens a producer that uses this strategy when it waits for room. */
  public Producer producer(String name, WaitStrategy wait) {
    Objects.requireNonNull(wait);
    // Allocate before the participant joins: if the allocation failed afterwards, the participant
    // would stay in the ring.
    ByteBuffer slot = ByteBuffer.allocateDirect(SLOT_BYTES);
    return retaining(
        () -> new Producer(this, slot, Native.openProducer(handle(), utf8(name)), wait));
  }

  /**
   * Joins a branch; makes the branch first if it does not exist. The branch's consumers share its
   * messages.
   */
  public Consumer consumer(String branch, BranchOptions options) {
    return consumer(branch, options, "java");
  }

  /**
   * Joins a branch like {@link #consumer(String, BranchOptions)}. Statistics show the consumer by
   * this name.
   */
  public Consumer consumer(String branch, BranchOptions options, String name) {
    return consumer(branch, options, name, WaitStrategy.DEFAULT);
  }

  /**
   * Joins a branch like {@link #consumer(String, BranchOptions)}. The consumer uses this strategy
   * when it waits for messages.
   */
  public Consumer consumer(String branch, BranchOptions options, String name, WaitStrategy wait) {
    Objects.requireNonNull(wait);
    // Allocate before the participant joins: if the allocation failed afterwards, the participant
    // would stay in the ring.
    LongBuffer taken = Lease.words(1);
    return retaining(
        () ->
            new Consumer(
                this,
                branch,
                taken,
                Native.join(
                    handle(),
                    utf8(branch),
                    options.start().ordinal(),
                    options.sequence(),
                    options.flags(),
                    utf8(name)),
                wait));
  }

  /** Makes a branch without joining it, so that it holds messages for later consumers. */
  public synchronized void subscribe(String branch, BranchOptions options) {
    Native.subscribe(
        handle(),
        utf8(branch),
        options.start().ordinal(),
        options.sequence(),
        options.flags());
  }

  /**
   * Drops a branch. The branch no longer holds producers back, and its consumers get an error. The
   * consumers keep their leases, and producers wait until these are released.
   */
  public synchronized void dropBranch(String branch) {
    Native.unsubscribe(handle(), utf8(branch));
  }

  public synchronized Optional<BranchInfo> branch(String branch) {
    long[] words = new long[5];
    if (!Native.branch(handle(), utf8(branch), words)) {
      return Optional.empty();
    }
    return Optional.of(new BranchInfo(words[0], words[1], words[2], (int) words[3], words[4] != 0));
  }

  /**
   * Returns the messages from `first` on and before `end`. A branch or a lease must hold them.
   */
  public Range range(long first, long end) {
    return new Range(this, first, end);
  }

  /** Returns the participants, including dead ones that are not cleared away yet. */
  public synchronized List<Participant> participants() {
    List<Participant> participants = new ArrayList<>();
    long[] words = new long[8];
    for (int i = 0; i < info.participants(); i++) {
      byte[] name = Native.participant(handle(), i, words);
      if (name != null) {
        participants.add(
            new Participant(
                i,
                words[0] == 1 ? Role.PRODUCER : words[0] == 2 ? Role.CONSUMER : Role.ATTACHED,
                words[1],
                words[2] != 0,
                words[3],
                words[4] == -1 ? OptionalLong.empty() : OptionalLong.of(words[4]),
                words[5],
                words[6],
                words[7],
                new String(name, StandardCharsets.UTF_8)));
      }
    }
    return participants;
  }

  @Override
  public synchronized void close() {
    if (!closed) {
      closed = true;
      try {
        if (temporary) {
          Native.unlink(handle, utf8(path.toString()));
        }
      } catch (RingException e) {
        // Ignore the error: the file is gone, or the path belongs to another ring by now.
      } finally {
        release();
      }
    }
  }

  @Override
  public String toString() {
    return "Ring \"" + label + "\" of " + info.slots() + " slots";
  }

  /** Returns the native handle; throws if all users of the ring were closed. */
  synchronized long handle() {
    if (users == 0) {
      throw closed("ring");
    }
    return handle;
  }

  RingException closed(String what) {
    return new RingException(Status.CLOSED, "this %s of ring \"%s\" was closed", what, label);
  }

  synchronized void retain() {
    handle(); // throws if the ring is closed
    users++;
  }

  synchronized void release() {
    users--;
    if (users == 0) {
      Native.closeRing(handle);
    }
  }

  private synchronized <T> T retaining(Supplier<T> make) {
    if (closed) {
      throw closed("ring");
    }
    retain();
    try {
      return make.get();
    } catch (RuntimeException error) {
      release();
      throw error;
    }
  }

  static byte[] utf8(String text) {
    if (text.indexOf('\0') >= 0) {
      throw new RingException(Status.INVALID, "a name cannot hold a null character: " + text);
    }
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
