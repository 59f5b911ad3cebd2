package io.shmring;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Optional;
import java.util.function.LongConsumer;

/** A member of a branch: takes messages, which stay in place until their lease is closed. */
public final class Consumer implements AutoCloseable {
  private final Ring ring;
  private final Handle handle;
  private volatile long ends; // of the stream, so far

  Consumer(Ring ring, long handle) {
    this.ring = ring;
    this.handle = new Handle(handle, Native::interruptMember);
  }

  /**
   * Lets the end marker that this consumer comes to first be a message ({@link Message#isEnd}), for
   * who passes messages on or may hand them back. Of others it is told as ever.
   */
  public synchronized void takeEnds() {
    Native.takeEnds(handle());
  }

  /**
   * Lets this consumer be told of the ends of the stream that came since the branch had come to
   * `since` of them ({@link BranchInfo#ends}), as if it had joined then. Before its first take.
   */
  public synchronized void hearEnds(long since) {
    Native.hearEnds(handle(), since);
  }

  /**
   * Takes the next message, waiting for it.
   *
   * @throws EndOfStreamException if the stream has ended
   */
  public Lease take() throws InterruptedException {
    return poll(1, Long.MAX_VALUE, Deadline.NEVER).orElseThrow();
  }

  /**
   * Takes the next message; empty if there was none in time. Zero does not wait.
   *
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(Duration timeout) throws InterruptedException {
    return poll(1, Long.MAX_VALUE, timeout);
  }

  /**
   * Takes messages that follow each other, as many as there are.
   *
   * @param maxMessages at most so many
   * @param maxSlots in at most so many slots; one message is taken whatever its size
   * @throws LapsedException if the branch may lapse, and did
   * @throws EndOfStreamException if the stream has ended
   */
  public Optional<Lease> poll(int maxMessages, long maxSlots, Duration timeout)
      throws InterruptedException {
    return poll(maxMessages, maxSlots, Deadline.in(timeout));
  }

  private Optional<Lease> poll(int maxMessages, long maxSlots, long deadline)
      throws InterruptedException {
    long[] words = new long[4];
    long before = ends;
    while (true) {
      Deadline.checkInterrupt();
      synchronized (this) {
        if (ends != before) { // another thread was told of it
          throw new EndOfStreamException(ring.name());
        }
        int status = Native.take(handle(), maxMessages, maxSlots, words);
        if (status == 0) {
          return Optional.of(new Lease(this, words[0], words[1], (int) words[2], words[3] != 0));
        }
        if (status == Answer.ENDED) {
          ends++;
          throw new EndOfStreamException(ring.name());
        }
        if (status == Answer.LAPSED) {
          Native.lapsed(handle(), words);
          throw new LapsedException(ring.name(), words[0], words[1]);
        }
        if (status == Answer.UNAVAILABLE
            && Native.waitMessage(handle(), deadline) == Answer.TIMEOUT) {
          return Optional.empty();
        }
      }
    }
  }

  /** Whom this consumer waits for while there is no message, and since when. */
  public synchronized String whyEmpty() {
    return new String(Native.explainEmpty(handle()), StandardCharsets.UTF_8);
  }

  /** How far the branch may be read without waiting: the sequence behind the last message. */
  public synchronized long available() {
    return Native.available(handle());
  }

  /**
   * Moves the branch on to `sequence`, an end of a message, and releases what lies before it
   * unread. One that may lapse may have lost that, and more.
   */
  public synchronized void advance(String branch, long sequence) throws InterruptedException {
    while (true) {
      long position = ring.branch(branch).map(BranchInfo::position).orElse(sequence);
      if (position >= sequence) {
        return;
      }
      try {
        Ring.Reach reach = reach(position, sequence);
        if (reach.messages() == 0) {
          return; // nothing but aborted claims
        }
        poll(reach.messages(), sequence - position, Duration.ZERO).ifPresent(Lease::close);
      } catch (LapsedException moved) {
        continue;
      }
    }
  }

  private Ring.Reach reach(long from, long end) {
    try {
      return ring.measure(from, end, Integer.MAX_VALUE, end - from);
    } catch (RingException error) {
      if (ring.floor() > from) {
        return new Ring.Reach(end, 1); // overwritten while it was looked at: the take will lapse
      }
      throw error;
    }
  }

  /** Releases whatever is still held and gives the seat back; ends the waits of other threads. */
  @Override
  public void close() {
    leave(Native::closeMember);
  }

  /** Leaves as if this process had died: what is still held is delivered to others again. */
  public void abandon() {
    leave(Native::abandonMember);
  }

  private void leave(LongConsumer how) {
    handle.endWaits();
    synchronized (this) {
      if (handle.address() != 0) {
        handle.free(how);
        ring.release();
      }
    }
  }

  public Ring ring() {
    return ring;
  }

  synchronized boolean isOpen() {
    return handle.isOpen();
  }

  synchronized void release(long first, long end) {
    if (handle.address() != 0) {
      Native.release(handle.address(), first, end);
    }
  }

  synchronized void nack(long first, long end) {
    if (Native.nack(handle(), first, end) != 0) {
      throw new RingException(
          Status.CONTENDED,
          String.format(
              "ring \"%s\": another process has been joining or recovering for seconds; it is stopped"
                  + " (kill -CONT it, or kill it); the lease is still held",
              ring.name()));
    }
  }

  private long handle() {
    if (!handle.isOpen()) {
      throw ring.closed("consumer");
    }
    return handle.address();
  }
}
