package io.shmring;

import java.util.Iterator;

/** Messages that were taken: nobody overwrites them until this is closed, or its consumer is. */
public final class Lease implements AutoCloseable, Iterable<Message>, Access {
  private final Consumer consumer;
  private final long first;
  private final long end;
  private final int count;
  private final boolean redelivered;
  private boolean open = true;

  Lease(Consumer consumer, long first, long end, int count, boolean redelivered) {
    this.consumer = consumer;
    this.first = first;
    this.end = end;
    this.count = count;
    this.redelivered = redelivered;
  }

  /** The first sequence that is held. */
  public long first() {
    return first;
  }

  /** The sequence behind the last one that is held. */
  public long end() {
    return end;
  }

  /** How many messages are held. */
  public int count() {
    return count;
  }

  /** Whether a member that died, or handed them back, has held them before. */
  public boolean redelivered() {
    return redelivered;
  }

  /** The only message of a lease of one. */
  public Message message() {
    return iterator().next();
  }

  @Override
  public Iterator<Message> iterator() {
    return new Messages(this, first, end);
  }

  /**
   * Hands the messages back: they are delivered again, marked as redelivered, to whoever takes next
   * on the branch. {@link #close} does nothing then. Call it where the messages could not be dealt
   * with: a try-with-resources block that is left with an exception closes the lease, which releases
   * them, because close() is not told of the exception.
   *
   * @throws RingException if they could not be handed back; they are still held, and {@link
   *     Consumer#abandon} hands back all at once
   */
  public void nack() {
    synchronized (consumer) {
      check();
      consumer.nack(first, end);
      open = false;
    }
  }

  /** Releases the messages; what was copied out of them stays. See {@link #nack}. */
  @Override
  public void close() {
    synchronized (consumer) {
      if (open) {
        open = false;
        consumer.release(first, end);
      }
    }
  }

  @Override
  public Ring ring() {
    return consumer.ring();
  }

  @Override
  public Object lock() {
    return consumer;
  }

  @Override
  public void check() {
    if (!open || !consumer.isOpen()) {
      throw consumer.ring().closed("lease");
    }
  }
}
