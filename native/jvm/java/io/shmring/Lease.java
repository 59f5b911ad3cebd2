package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Iterator;
import java.util.Optional;

/** Messages that were taken: producers do not overwrite them until this or its consumer is closed. */
public final class Lease implements AutoCloseable, Iterable<Message>, Access {
  private final Consumer consumer;
  private final long first;
  private final long end;
  private final int count;
  private final int deliveries;
  private final Optional<Message> head; // empty: reading it throws what is wrong
  private boolean open = true;

  /** Reads the words that Native.take() wrote. */
  Lease(Consumer consumer, ByteBuffer words) {
    this.consumer = consumer;
    this.first = words.getLong(0);
    this.end = words.getLong(Long.BYTES);
    this.count = (int) words.getLong(2 * Long.BYTES);
    this.deliveries = (int) words.getLong(3 * Long.BYTES) + 1;
    this.head =
        words.getLong(4 * Long.BYTES) != 0
            ? Optional.of(new Message(this, words, 5 * Long.BYTES))
            : Optional.empty();
  }

  /** Room for Native.take(). */
  static ByteBuffer words() {
    return ByteBuffer.allocateDirect(5 * Long.BYTES + Message.BYTES)
        .order(ByteOrder.nativeOrder());
  }

  /** The first sequence that is held. */
  public long first() {
    return first;
  }

  /** The sequence behind the last one that is held. */
  public long end() {
    return end;
  }

  /** Number of messages that are held. */
  public int count() {
    return count;
  }

  /** Whether an earlier consumer held these messages, and died or handed them back. */
  public boolean redelivered() {
    return deliveries > 1;
  }

  /** Number of deliveries of these messages, this one included; 256 for more than 255. */
  public int deliveries() {
    return deliveries;
  }

  /** The only message of a lease of one. */
  public Message message() {
    synchronized (consumer) {
      check();
      if (head.isPresent()) {
        return head.get();
      }
    }
    return iterator().next();
  }

  @Override
  public Iterator<Message> iterator() {
    return new Messages(this, head, first, end);
  }

  /**
   * Hands the messages back: the branch delivers them again, marked as redelivered. {@link #close}
   * does nothing then. Call this if the messages could not be processed: a try-with-resources block
   * that ends with an exception closes the lease, and so releases the messages, because close() does
   * not know of the exception.
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

  /** Releases the messages; copies of them stay valid. See {@link #nack}. */
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
