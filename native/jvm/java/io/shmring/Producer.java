package io.shmring;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * Publishes messages in a ring. An open {@link Claim} must be committed or aborted before the next
 * one.
 */
public final class Producer extends Handle implements AutoCloseable {
  private static final byte[] NOTHING = {};

  private final MessageRoom room = new MessageRoom();
  private final ByteBuffer slot; // direct buffer through which push() passes a message of one slot
  private final long slotAddress;
  private Optional<Claim> open = Optional.empty();
  // Direct buffer of pushMany(): lengths of the messages.
  private ByteBuffer lengths = ByteBuffer.allocateDirect(0);

  Producer(Ring ring, ByteBuffer slot, long handle, WaitStrategy wait) {
    super("producer", ring, wait, handle, Native::interruptProducer);
    this.slot = slot;
    this.slotAddress = Native.address(slot);
  }

  /** Waits for room and publishes a message; returns its id. */
  public long push(byte[] data) throws InterruptedException {
    return push(data, Kind.BYTES, NEVER);
  }

  /**
   * Publishes a message; returns empty if there was no room in time. A timeout of zero does not
   * wait.
   */
  public OptionalLong push(byte[] data, Duration timeout) throws InterruptedException {
    long sequence = push(data, Kind.BYTES, deadline(timeout));
    return sequence < 0 ? OptionalLong.empty() : OptionalLong.of(sequence);
  }

  /** Publishes the end marker, which ends the stream for every consumer of every branch. */
  public long end() throws InterruptedException {
    return push(NOTHING, Kind.END, NEVER);
  }

  private long push(byte[] data, int kind, long deadline) throws InterruptedException {
    long slots = checkedSlots(data.length, false);
    while (true) {
      long sequence;
      synchronized (this) {
        sequence = pushNow(data, kind);
      }
      if (sequence >= 0 || !retry(sequence, slots, deadline)) {
        return sequence;
      }
    }
  }

  /**
   * Publishes a message. A message of one slot is copied twice, because passing the array to the
   * native call takes longer than one more copy of a slot.
   */
  private long pushNow(byte[] data, int kind) {
    long producer = handle();
    if (data.length > Ring.SLOT_BYTES) {
      return Native.pushLarge(ringHandle, producer, data, kind);
    }
    slot.put(0, data, 0, data.length);
    long sequence = Native.push(producer, slotAddress, data.length, kind);
    // Keeps the buffer alive: the native call knows only its address.
    Reference.reachabilityFence(slot);
    return sequence;
  }

  /**
   * Waits for room and publishes `count` messages of one slot each by one store: all of them or
   * none. The writer fills each message in place. If the writer throws, no message is published,
   * and the caller gets the exception. Other threads that use this producer wait until the call
   * returns; the writer itself must neither close this producer nor push with it.
   *
   * @return the id of the first message; the ids of the others follow it one by one
   */
  public long pushMany(int count, MessageWriter writer) throws InterruptedException {
    return pushMany(count, writer, NEVER);
  }

  /**
   * Publishes messages like {@link #pushMany(int, MessageWriter)}; returns empty, and publishes
   * none, if there was no room in time.
   */
  public OptionalLong pushMany(int count, MessageWriter writer, Duration timeout)
      throws InterruptedException {
    long sequence = pushMany(count, writer, deadline(timeout));
    return sequence < 0 ? OptionalLong.empty() : OptionalLong.of(sequence);
  }

  private long pushMany(int count, MessageWriter writer, long deadline)
      throws InterruptedException {
    if (count < 1) {
      throw new RingException(Status.INVALID, "pushMany wants at least one message, not " + count);
    }
    checkRoom(count);
    while (true) {
      long sequence;
      synchronized (this) {
        // The handle stays valid until the messages are published, because close() waits for the
        // lock that this thread has.
        long producer = handle();
        ByteBuffer lengths = lengthsFor(count);
        sequence = Native.next(producer, count);
        if (sequence >= 0) {
          writeAll(producer, sequence, count, writer, lengths);
          return sequence;
        }
      }
      if (!retry(sequence, count, deadline)) {
        return sequence;
      }
    }
  }

  private ByteBuffer lengthsFor(int count) {
    refuseInside(room.isOpen(), "used", "writer");
    int bytes = Math.multiplyExact(count, Integer.BYTES);
    if (lengths.capacity() < bytes) {
      lengths = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }
    return lengths;
  }

  private void writeAll(
      long producer, long sequence, int count, MessageWriter writer, ByteBuffer lengths) {
    boolean published = false;
    try {
      long first = ring.slots.offset(Native.slotAddress(ringHandle, sequence));
      room.open(ring.slots);
      for (int i = 0; i < count; i++) {
        room.show(first + (long) i * Ring.SLOT_BYTES, Ring.SLOT_BYTES);
        int length = writer.write(i, room);
        if (length < 0 || length > Ring.SLOT_BYTES) {
          throw new RingException(
              Status.TOO_LARGE,
              "the writer says that message %d has %d bytes; a message of a slot has at most %d",
              i, length, Ring.SLOT_BYTES);
        }
        lengths.putInt(i * Integer.BYTES, length);
      }
      Native.publishMany(producer, sequence + count - 1, Native.address(lengths));
      // Keeps the buffer alive: the native call knows only its address.
      Reference.reachabilityFence(lengths);
      published = true;
    } finally {
      room.end();
      if (!published) {
        Native.abort(producer);
      }
    }
  }

  /** Waits for room and claims it for a message of `length` bytes. */
  public Claim claim(long length) throws InterruptedException {
    return claim(length, -1, NEVER).orElseThrow();
  }

  /** Claims room for a message; returns empty if there was no room in time. */
  public Optional<Claim> claim(long length, Duration timeout) throws InterruptedException {
    return claim(length, -1, deadline(timeout));
  }

  /**
   * Claims room for a message whose byte `align` (a multiple of 4) will lie on a 64-byte boundary,
   * as the body of an Arrow message must.
   */
  public Optional<Claim> claim(long length, long align, Duration timeout)
      throws InterruptedException {
    if (align < 0 || align % 4 != 0) {
      throw new RingException(Status.INVALID, "align must be a multiple of 4, not " + align);
    }
    return claim(length, align, deadline(timeout));
  }

  private Optional<Claim> claim(long length, long align, long deadline)
      throws InterruptedException {
    checkedSlots(length, align >= 0); // throws above 4 GiB, so that the cast to int keeps all bits
    return claim(new int[] {(int) length}, new long[] {align}, deadline);
  }

  /**
   * Claims room for several messages that become readable at once.
   *
   * @param lengths length of each message in bytes
   * @param aligns for each message, the byte that will lie on a 64-byte boundary; -1 for none
   */
  public Optional<Claim> claimAll(int[] lengths, int[] aligns, Duration timeout)
      throws InterruptedException {
    return claim(
        lengths, Arrays.stream(aligns).asLongStream().toArray(), deadline(timeout));
  }

  /**
   * Claims room for messages that become readable at once; returns empty if there was no room in
   * time.
   *
   * @param lengths length of each message in bytes, as unsigned ints
   * @param aligns for each message, the byte that will lie on a 64-byte boundary; -1 for none
   */
  private Optional<Claim> claim(int[] lengths, long[] aligns, long deadline)
      throws InterruptedException {
    int[] parts = new int[3 * lengths.length];
    long sum = 0;
    for (int i = 0; i < lengths.length; i++) {
      long slots = checkedSlots(Integer.toUnsignedLong(lengths[i]), aligns[i] >= 0);
      parts[3 * i] = (int) slots;
      parts[3 * i + 1] = lengths[i];
      sum += slots;
    }
    checkRoom(sum);
    while (true) {
      long sequence;
      synchronized (this) {
        sequence = Native.next(handle(), (int) sum);
        if (sequence >= 0) {
          return claimOf(sequence, parts, aligns);
        }
      }
      if (!retry(sequence, sum, deadline)) {
        return Optional.empty();
      }
    }
  }

  /** Makes the claim's object. If there is no memory for the object, aborts the claim at once. */
  private Optional<Claim> claimOf(long sequence, int[] parts, long[] aligns) {
    try {
      open = Optional.of(new Claim(this, handle(), sequence, parts, aligns));
      return open;
    } finally {
      // Use no catch block: the JVM may have to load a class for it, which fails without memory.
      if (open.isEmpty()) {
        Native.abort(handle());
      }
    }
  }

  // CHANGE: edit this for a new option of a ring
  private void checkRoom(long slots) {
    if (slots > ring.info().slots()) {
      throw new RingException(
          Status.TOO_LARGE, "ring \"%s\" has %d slots, these messages need %d",
          ring.name(), ring.info().slots(), slots);
    }
  }

  /**
   * Returns the number of slots that a message takes, with or without a byte that must lie on a
   * 64-byte boundary.
   */
  public static long slotsFor(long length, boolean aligned) {
    return Native.slotsFor(length, aligned);
  }

  private long checkedSlots(long length, boolean aligned) {
    if (length < 0 || length > 0xffff_ffffL) {
      throw new RingException(
          Status.TOO_LARGE, "a message has at most 4 GiB, not " + length + " bytes");
    }
    if (length <= Ring.SLOT_BYTES && !aligned) {
      return 1;
    }
    long slots = Native.slotsFor(length, aligned);
    if (slots > ring.info().slots()) {
      throw new RingException(
          Status.TOO_LARGE,
          "ring \"%s\" has %d slots, a message of %d bytes needs %d; create the ring with more"
              + " slots, or split the message",
          ring.name(), ring.info().slots(), length, slots);
    }
    return slots;
  }

  private boolean retry(long status, long slots, long deadline) throws InterruptedException {
    checkInterrupt();
    if (status == Outcome.CONTENDED) {
      return true;
    }
    synchronized (this) {
      return Native.waitSpace(handle(), slots, deadline, wait.ordinal()) != Outcome.TIMEOUT;
    }
  }

  /** Aborts an open claim and leaves the ring; ends the waits of other threads. */
  @Override
  public void close() {
    // Do not lock this producer here: a thread that waits for room holds the lock.
    refuseInside(room.isOpen(), "closed", "writer");
    leave(
        producer -> {
          open.ifPresent(Claim::end);
          open = Optional.empty();
          Native.closeProducer(producer);
        });
  }

  synchronized void publish(int[] parts, int kind) {
    Native.publish(handle(), parts, kind);
    open = Optional.empty();
  }

  synchronized void abort() {
    Native.abort(handle());
    open = Optional.empty();
  }
}
