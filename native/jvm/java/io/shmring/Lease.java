package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.util.Optional;

/**
 * Messages that a consumer has taken. Producers do not overwrite them until the lease or its
 * consumer is closed.
 */
public final class Lease extends Messages {
  /** Number of words that Native.take() writes before the words of the messages. */
  static final int WORDS = 5;

  private final Consumer consumer;
  private final int count;
  private final int deliveries;
  // The first message; empty if it is damaged: reading it from the ring then throws the error.
  private final Optional<Message> head;
  private boolean open = true;

  /**
   * Makes a lease from the words that Native.take() wrote.
   *
   * @param described whether the words describe the first message
   */
  Lease(Consumer consumer, LongBuffer words, boolean described) {
    super(consumer.ring(), words.get(0), words.get(1));
    this.consumer = consumer;
    this.count = (int) words.get(2);
    this.deliveries = (int) words.get(3) + 1;
    this.head = described ? Optional.of(new Message(this, words, WORDS)) : Optional.empty();
  }

  /** Returns a buffer into which Native.take() can describe `messages` messages. */
  static LongBuffer words(int messages) {
    return ByteBuffer.allocateDirect((WORDS + messages * Message.WORDS) * Long.BYTES)
        .order(ByteOrder.nativeOrder())
        .asLongBuffer();
  }

  /** Returns the first held sequence. */
  public long first() {
    return first;
  }

  /** Returns the sequence after the last held sequence. */
  public long end() {
    return end;
  }

  /** Returns the number of held messages. */
  public int count() {
    return count;
  }

  /**
   * Returns whether the messages were delivered before, to a consumer that died or handed them
   * back.
   */
  public boolean redelivered() {
    return deliveries > 1;
  }

  /**
   * Returns how many times the messages have been delivered, including this delivery; 256 means
   * more than 255.
   */
  public int deliveries() {
    return deliveries;
  }

  /**
   * Returns the first message: the only one if the lease was taken with {@link Consumer#take} or
   * {@link Consumer#poll(java.time.Duration)}.
   */
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
   * then does nothing. Call this if the messages could not be processed: a try-with-resources block
   * that ends with an exception closes the lease, and so releases the messages, because close()
   * does not know of the exception.
   *
   * @throws RingException if the messages could not be handed back; they are still held, and
   *     {@link Consumer#abandon} hands back all held messages at once
   */
  public void nack() {
    synchronized (consumer) {
      check();
      consumer.nack(first, end);
      open = false;
    }
  }

  /** Releases the messages. Copies of the messages stay valid. See {@link #nack}. */
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
