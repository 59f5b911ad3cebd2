package io.shmring;

import java.lang.ref.Reference;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.function.LongConsumer;

/** Takes messages from a branch. A message stays in place until its lease is closed. */
public final class Consumer extends Handle implements AutoCloseable {
  final String branch;
  private final LongBuffer taken; // words that describe the messages taken by the last poll
  private final long takenAddress;
  private volatile long ends; // number of end markers that calls of this object have reported
  private Drain drain; // null before the first drain()
  private Optional<Producer> deadLetters = Optional.empty();
  // True after a failed handBack(): close() then hands back all held messages, and releases none.
  private boolean kept;

  Consumer(Ring ring, String branch, LongBuffer taken, long handle, WaitStrategy wait) {
    super("consumer", ring, wait, handle, Native::interruptConsumer);
    this.branch = branch;
    this.taken = taken;
    this.takenAddress = Native.address(taken);
  }

  /**
   * Limits the deliveries of a message to `maxDeliveries` (1 to 255). A message that consumers have
   * died over or handed back so often is pushed into the dead-letter ring instead, and released.
   * Takes of this consumer return redelivered messages one at a time. Call this before the first
   * take.
   *
   * <p>If the dead-letter ring has no room ({@link Status#NO_SPACE}) or its file was removed
   * ({@link Status#NOT_FOUND}), the take throws; the message stays, and the next take tries again.
   * A consumer that is killed between the push and the release leaves the message to be pushed
   * twice; no message is lost.
   *
   * @param deadLetter an existing ring with this ring's schema and at least as many slots; a name
   *     with a slash is a path
   * @return this consumer
   */
  public synchronized Consumer setAside(int maxDeliveries, String deadLetter) {
    long consumer = handle();
    try (Ring letters = Ring.attach(deadLetter)) { // the producer keeps the ring open
      Producer producer = letters.producer("dead letters of " + ring.name());
      try {
        Native.deadLetters(consumer, maxDeliveries, producer.handle());
      } catch (Throwable error) { // native code throws OutOfMemoryError, too
        producer.close();
        throw error;
      }
      deadLetters.ifPresent(Producer::close);
      deadLetters = Optional.of(producer);
    }
    return this;
  }

  /**
   * Waits for the next message and takes it.
   *
   * @throws EndOfStreamException if the stream has ended
   */
  public Lease take() throws InterruptedException {
    return poll(1, Long.MAX_VALUE, NEVER).orElseThrow();
  }

  /**
   * Takes the next message; returns empty if no message came in time. A timeout of zero does not
   * wait.
   *
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(Duration timeout) throws InterruptedException {
    return poll(1, Long.MAX_VALUE, timeout);
  }

  /**
   * Takes the consecutive messages that can be read now; returns empty if no message came in time.
   *
   * @param maxMessages upper limit of the messages to take
   * @param maxSlots upper limit of the slots to take; the first message is taken in any case
   * @throws OverrunException if the branch drops the oldest messages and has lost some
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(int maxMessages, long maxSlots, Duration timeout)
      throws InterruptedException {
    // Pass 0, which the core refuses, for a negative number: the core would read it as unsigned.
    return poll(Math.max(maxMessages, 0), maxSlots, deadline(timeout));
  }

  private Optional<Lease> poll(int maxMessages, long maxSlots, long deadline)
      throws InterruptedException {
    long before = ends;
    while (true) {
      checkInterrupt();
      synchronized (this) {
        if (ends != before) { // another thread met the end of the stream meanwhile
          throw new EndOfStreamException(ring.name());
        }
        int answer = Native.take(ringHandle, handle(), maxMessages, maxSlots, takenAddress, 1);
        // Keeps the buffer alive: the native call knows only its address.
        Reference.reachabilityFence(taken);
        if (answer >= 0) {
          return leaseOfTaken(answer > 0);
        }
        checkAnswer(answer);
        if (waitWhereEmpty(answer, deadline) == Outcome.TIMEOUT) {
          return Optional.empty();
        }
      }
    }
  }

  /** Makes the lease. If there is no memory for the lease, hands the messages back at once. */
  private Optional<Lease> leaseOfTaken(boolean described) {
    boolean made = false;
    try {
      Optional<Lease> lease = Optional.of(new Lease(this, taken, described));
      made = true;
      return lease;
    } finally {
      // Use no catch block: the JVM may have to load a class for it, which fails without memory.
      if (!made) {
        handBack(taken.get(0), taken.get(1));
      }
    }
  }

  private int waitWhereEmpty(int answer, long deadline) {
    return answer == Outcome.UNAVAILABLE
        ? Native.waitMessage(handle(), deadline, wait.ordinal())
        : answer;
  }

  // CHANGE: edit this for a new error
  private void checkAnswer(int status) {
    if (status == Outcome.ENDED) {
      ends++;
      throw new EndOfStreamException(ring.name());
    }
    if (status == Outcome.OVERRUN) {
      long[] lost = new long[2];
      Native.overrun(handle(), lost);
      throw new OverrunException(ring.name(), lost[0], lost[1]);
    }
  }

  /**
   * Passes the messages that can be read now to the handler, one after the other, in place, and
   * releases all of them after the last one. Does not wait. Other threads that use or close this
   * consumer wait until the call returns; the handler itself must neither close nor drain this
   * consumer.
   *
   * <p>If the handler throws, its message and the messages after it are handed back, as by
   * {@link Lease#nack}, and delivered again. The messages before it are released. The caller gets
   * the exception. If the messages cannot be handed back, a suppressed exception says so, and
   * {@link #close} hands them back.
   *
   * @param limit upper limit of the messages to take; a call takes at most 1,024
   * @return the number of messages passed to the handler
   * @throws OverrunException if the branch drops the oldest messages and has lost some
   * @throws EndOfStreamException if the stream has ended
   * @throws RingException if a message is damaged; the damaged message is released, and the handler
   *     has had the messages before it
   */
  public int drain(MessageHandler handler, int limit) {
    while (true) {
      synchronized (this) {
        int status = drainNow(handler, limit);
        checkAnswer(status);
        if (status != Outcome.CONTENDED) {
          return Math.max(status, 0);
        }
      }
    }
  }

  /**
   * Drains the branch like {@link #drain(MessageHandler, int)}, but waits for the first message;
   * returns zero if no message came in time.
   */
  public int drain(MessageHandler handler, int limit, Duration timeout)
      throws InterruptedException {
    long deadline = deadline(timeout);
    long before = ends;
    while (true) {
      checkInterrupt();
      synchronized (this) {
        if (ends != before) { // another thread met the end of the stream meanwhile
          throw new EndOfStreamException(ring.name());
        }
        int answer = drainNow(handler, limit);
        if (answer > 0) {
          return answer;
        }
        checkAnswer(answer);
        if (waitWhereEmpty(answer, deadline) == Outcome.TIMEOUT) {
          return 0;
        }
      }
    }
  }

  private int drainNow(MessageHandler handler, int limit) {
    if (limit < 1) {
      throw new RingException(Status.INVALID, "drain wants at least one message, not " + limit);
    }
    long consumer = handle();
    refuseInHandler("drained");
    if (drain == null) {
      drain = new Drain(ring);
    }
    int count = drain.take(consumer, limit, this);
    return count > 0 ? drain.deliver(handler, count, this) : count;
  }

  private void refuseInHandler(String done) {
    refuseInside(drain != null && drain.view.isOpen(), done, "handler");
  }

  /**
   * Explains in one sentence why there is no message: which process this consumer waits for, and
   * since when.
   */
  public synchronized String whyEmpty() {
    return new String(Native.explainEmpty(handle()), StandardCharsets.UTF_8);
  }

  /** Returns the sequence after the last message that can be read without waiting. */
  public synchronized long available() {
    return Native.available(handle());
  }

  /**
   * Releases all held messages and leaves the branch; ends the waits of other threads. If a
   * {@link #drain} could not hand messages back, all held messages are delivered again instead.
   */
  @Override
  public void close() {
    leaveBranch(
        consumer -> {
          if (kept) {
            Native.abandonConsumer(consumer);
          } else {
            Native.closeConsumer(consumer);
          }
        });
  }

  /** Leaves the branch as if this process had died: the branch delivers the held messages again. */
  public void abandon() {
    leaveBranch(Native::abandonConsumer);
  }

  private void leaveBranch(LongConsumer how) {
    // Do not lock this consumer here: a thread that waits for a message holds the lock.
    refuseInHandler("closed");
    leave(
        consumer -> {
          how.accept(consumer);
          deadLetters.ifPresent(Producer::close);
        });
  }

  public Ring ring() {
    return ring;
  }

  synchronized void release(long first, long end) {
    if (address() != 0) {
      Native.release(address(), first, end);
    }
  }

  synchronized void nack(long first, long end) {
    if (address() == 0) {
      throw ring.closed("consumer");
    }
    if (Native.nack(address(), first, end) != 0) {
      throw new RingException(
          Status.CONTENDED,
          "ring \"%s\": another process has been joining or recovering for seconds; it is stopped"
              + " (kill -CONT it, or kill it); the lease is still held",
          ring.name());
    }
  }

  /**
   * Hands back messages for which the caller keeps no lease. If that fails, close() tries again,
   * because the caller cannot.
   */
  synchronized void handBack(long first, long end) {
    boolean done = false;
    try {
      nack(first, end);
      done = true;
    } finally {
      kept |= !done;
    }
  }
}
