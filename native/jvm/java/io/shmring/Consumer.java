package io.shmring;

import java.lang.ref.Reference;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.function.LongConsumer;

/** A consumer of a branch: takes messages, which stay in place until their lease is closed. */
public final class Consumer extends Handle implements AutoCloseable {
  final String branch;
  private final LongBuffer taken; // by the last poll
  private final long takenAddress;
  private volatile long ends; // of the stream, so far
  private Drain drain; // made by the first drain()
  private Optional<Producer> deadLetters = Optional.empty();
  private boolean kept; // it holds messages that it could not hand back: closing does it

  Consumer(Ring ring, String branch, LongBuffer taken, long handle, WaitStrategy wait) {
    super("consumer", ring, wait, handle, Native::interruptConsumer);
    this.branch = branch;
    this.taken = taken;
    this.takenAddress = Native.address(taken);
  }

  /**
   * Delivers a message 1 to 255 times at most: one that was delivered so often, to consumers that died
   * or handed it back, is pushed into another ring instead, and released. Messages that were delivered
   * before come one at a time then. Call it before the first take.
   *
   * <p>If that ring has no room, the take throws ({@link Status#NO_SPACE}), and so it does if its file was
   * removed ({@link Status#NOT_FOUND}); the message stays, and the next take tries again. A consumer that is killed in between pushes a message twice, and loses none.
   *
   * @param deadLetter a ring that is there, with this ring's schema and at least as many slots; a name with a
   *     slash is a path
   * @return this
   */
  public synchronized Consumer setAside(int maxDeliveries, String deadLetter) {
    long consumer = handle();
    try (Ring letters = Ring.attach(deadLetter)) { // the producer keeps it
      Producer producer = letters.producer("dead letters of " + ring.name());
      boolean done = false;
      try {
        Native.deadLetters(consumer, maxDeliveries, producer.handle());
        done = true;
      } finally {
        if (!done) {
          producer.close();
        }
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
   * Takes the next message; returns empty if none came in time. Zero does not wait.
   *
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(Duration timeout) throws InterruptedException {
    return poll(1, Long.MAX_VALUE, timeout);
  }

  /**
   * Takes the consecutive messages that are there; returns empty if none came in time.
   *
   * @param maxMessages the most messages to take
   * @param maxSlots the most slots to take; one message of any size is always taken
   * @throws OverrunException if the branch drops the oldest messages and has lost some
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(int maxMessages, long maxSlots, Duration timeout)
      throws InterruptedException {
    return poll(maxMessages, maxSlots, deadline(timeout));
  }

  private Optional<Lease> poll(int maxMessages, long maxSlots, long deadline)
      throws InterruptedException {
    long before = ends;
    while (true) {
      checkInterrupt();
      synchronized (this) {
        if (ends != before) { // another thread was told of it
          throw new EndOfStreamException(ring.name());
        }
        int answer = Native.take(ringHandle, handle(), maxMessages, maxSlots, takenAddress, 1);
        Reference.reachabilityFence(taken); // of which the call has the address only
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

  /** Makes the lease; if there is no memory for it, the messages are handed back at once. */
  private Optional<Lease> leaseOfTaken(boolean described) {
    boolean made = false;
    try {
      Optional<Lease> lease = Optional.of(new Lease(this, taken, described));
      made = true;
      return lease;
    } finally { // a catch could have to load a class
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
   * Passes the messages that are there to the handler, one after the other, in place, and releases
   * all of them after the last one; does not wait. Other threads that use or close this consumer wait
   * meanwhile; the handler itself may neither close nor drain it.
   *
   * <p>If the handler throws, its message and those behind it are handed back, as by {@link
   * Lease#nack}: they are delivered again. The messages before it are released. The caller gets the
   * exception. If the messages cannot be handed back, a suppressed exception says so, and {@link
   * #close} hands them back.
   *
   * @param limit the most messages to take; 1,024 at a time at most
   * @return the number of messages
   * @throws OverrunException if the branch drops the oldest messages and has lost some
   * @throws EndOfStreamException if the stream has ended
   * @throws RingException if a message is damaged; it is released, and the handler has had the
   *     messages before it
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

  /** Drains, too, but waits for the first message; returns zero if none came in time. */
  public int drain(MessageHandler handler, int limit, Duration timeout)
      throws InterruptedException {
    long deadline = deadline(timeout);
    long before = ends;
    while (true) {
      checkInterrupt();
      synchronized (this) {
        if (ends != before) { // another thread was told of it
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

  /** A sentence about why there is no message: whom this consumer waits for, and since when. */
  public synchronized String whyEmpty() {
    return new String(Native.explainEmpty(handle()), StandardCharsets.UTF_8);
  }

  /** The sequence behind the last message that can be read without waiting. */
  public synchronized long available() {
    return Native.available(handle());
  }

  /**
   * Releases everything that is still held and leaves the branch; ends the waits of other threads. If
   * a {@link #drain} could not hand messages back, all held messages are delivered again instead.
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

  /** Leaves as if this process had died: the branch delivers the held messages again. */
  public void abandon() {
    leaveBranch(Native::abandonConsumer);
  }

  private void leaveBranch(LongConsumer how) {
    refuseInHandler("closed"); // without the lock, which a thread that waits has
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

  /** Hands back messages of which the caller keeps no lease, so that it cannot try again. */
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
