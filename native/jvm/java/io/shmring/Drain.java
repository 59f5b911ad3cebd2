package io.shmring;

import java.nio.LongBuffer;

/**
 * A consumer's buffer for drain(). Native code describes each message in the buffer (its offset in
 * the ring, its length), and a view shows the handler one message after the other.
 */
final class Drain {
  /** Upper limit of the messages that one call takes. */
  static final int MOST = 1024;

  private final long ring; // handle of the ring, valid while the consumer is open
  private final Slots slots;
  final MessageView view = new MessageView();
  private final LongBuffer words = Lease.words(MOST);
  private final long address = Native.address(words);

  Drain(Ring ring) {
    this.ring = ring.handle();
    this.slots = ring.slots;
  }

  /**
   * Takes up to `limit` messages. Returns their number, or an {@link Outcome}. If the first message
   * is damaged, releases that message and throws.
   */
  int take(long handle, int limit, Consumer consumer) {
    int count = Native.take(ring, handle, Math.min(limit, MOST), Long.MAX_VALUE, address, MOST);
    if (count == 0) {
      try {
        Native.read(ring, words.get(0), words.get(1), new long[Message.WORDS]);
      } catch (Throwable error) {
        // Native code throws RingException, or OutOfMemoryError if it cannot make one.
        settle(consumer, words.get(4), error);
        throw error;
      }
      // Native.take() found the first message damaged, but Native.read() could read it just now.
      // Hand all taken messages back, so that the caller can take them again.
      settle(consumer, words.get(0), null);
      return Outcome.CONTENDED;
    }
    return count;
  }

  /**
   * Passes the messages of take() to the handler. Then the consumer releases them, or hands some
   * back.
   */
  int deliver(MessageHandler handler, int count, Consumer consumer) {
    long done = words.get(0);
    Throwable failure = null;
    view.open(slots);
    try {
      for (int i = 0; i < count; i++) {
        int at = Lease.WORDS + i * Message.WORDS;
        long behind = words.get(at);
        view.show(
            words.get(at + 1),
            words.get(at + 2),
            words.get(at + 3),
            words.get(at + 4),
            (int) words.get(at + 5));
        handler.onMessage(view);
        done = behind;
      }
      done = words.get(4);
    } catch (Throwable error) { // recorded for settle(), which may add an exception to it
      failure = error;
      throw error;
    } finally {
      view.end();
      settle(consumer, done, failure);
    }
    return count;
  }

  /**
   * Releases the messages before `done` and hands the rest back. If the rest cannot be handed back,
   * the consumer's close() hands it back.
   *
   * @param failure the exception that the caller throws anyway, or null; an exception of this
   *     method is added to it as a suppressed one
   */
  private void settle(Consumer consumer, long done, Throwable failure) {
    long first = words.get(0);
    long end = words.get(1);
    try {
      if (done > first) {
        consumer.release(first, done);
      }
      if (end > done) {
        consumer.handBack(done, end);
      }
    } catch (RingException error) {
      if (failure == null) {
        throw error;
      }
      failure.addSuppressed(error);
    }
  }
}
