package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.Optional;

/** Messages that were taken: producers do not overwrite them until this or its consumer is closed. */
public final class Lease extends Messages {
  /** Words in front of the messages that Native.take() describes. */
  static final int WORDS = 5;

  private final Consumer consumer;
  private final int count;
  private final int deliveries;
  private final Optional<Message> head; // empty: reading it throws what is wrong
  private boolean open = true;

  /**
   * Reads the words that Native.take() wrote.
   *
   * @param described whether a message is among them
   */
  Lease(Consumer consumer, LongBuffer words, boolean described) {
    super(consumer.ring(), words.get(0), words.get(1));
    this.consumer = consumer;
    this.count = (int) words.get(2);
    this.deliveries = (int) words.get(3) + 1;
    this.head = described ? Optional.of(new Message(this, words, WORDS)) : Optional.empty();
  }

  /** Room for Native.take(), which describes so many messages. */
  static LongBuffer words(int messages) {
    return ByteBuffer.allocateDirect((WORDS + messages * Message.WORDS) * Long.BYTES)
        .order(ByteOrder.nativeOrder())
        .asLongBuffer();
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
  Optional<Message> head() {
    return head;
  }

  @Override
  Object lock() {
    return consumer;
  }

  @Override
  void check() {
    if (!open || !consumer.isOpen()) {
      throw ring.closed("lease");
    }
  }
}
