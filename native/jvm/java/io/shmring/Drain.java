package io.shmring;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** A consumer's buffer for drain(): the native side writes the places of messages, a view shows them. */
final class Drain {
  /** The most messages of a call. */
  static final int MOST = 1024;

  private static final int HEAD = 3 * Long.BYTES; // first, behind what can be read, end
  private static final int RECORD = 5 * Long.BYTES; // behind, id, time, offset, length and kind

  private final long ring; // its handle stays for as long as the consumer is open
  private final Slots slots;
  private final MessageView view = new MessageView();
  private final ByteBuffer words =
      ByteBuffer.allocateDirect(HEAD + MOST * RECORD).order(ByteOrder.nativeOrder());
  private final long address = Native.address(words);

  Drain(Ring ring) {
    this.ring = ring.handle();
    this.slots = ring.slots();
  }

  MessageView view() {
    return view;
  }

  /** Takes up to `limit` messages; returns their number, or an {@link Outcome}. Skips a damaged one. */
  int take(long handle, int limit, Consumer consumer) {
    try {
      return Native.drain(ring, handle, Math.min(limit, MOST), address);
    } catch (Throwable error) { // rethrown: also where there was no memory to say what is damaged
      settle(consumer, words.getLong(Long.BYTES), error);
      throw error;
    }
  }

  /** Passes the messages of take() to the handler; the consumer releases them, or hands some back. */
  int deliver(MessageHandler handler, int count, Consumer consumer) {
    long done = words.getLong(0);
    Throwable failure = null;
    view.open();
    try {
      for (int i = 0; i < count; i++) {
        int at = HEAD + i * RECORD;
        long behind = words.getLong(at);
        long packed = words.getLong(at + 4 * Long.BYTES);
        view.show(
            slots,
            words.getLong(at + Long.BYTES),
            words.getLong(at + 2 * Long.BYTES),
            words.getLong(at + 3 * Long.BYTES),
            packed & 0xffff_ffffL,
            (int) (packed >>> 32));
        handler.onMessage(view);
        done = behind;
      }
      done = words.getLong(Long.BYTES);
    } catch (Throwable error) { // rethrown: only here it is known how far the handler came
      failure = error;
      throw error;
    } finally {
      view.end();
      settle(consumer, done, failure);
    }
    return count;
  }

  /** Releases the messages before `done`, and hands the rest back; closing does so at the latest. */
  private void settle(Consumer consumer, long done, Throwable failure) {
    long first = words.getLong(0);
    long end = words.getLong(2 * Long.BYTES);
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
