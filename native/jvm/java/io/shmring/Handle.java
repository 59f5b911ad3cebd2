package io.shmring;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.LongConsumer;

/**
 * A producer or a consumer: a handle of the C library that one thread may close while another waits in
 * it. A thread that uses it holds this object's monitor, also while it waits.
 *
 * <p>The monitor also keeps the ring mapped while Java reads or writes there: handlers, writers and
 * copies run with the monitor held, after a check that this is open, and closing takes the monitor
 * before the ring can be unmapped.
 */
abstract class Handle {
  static final long NEVER = Long.MAX_VALUE;

  final Ring ring;
  final long ringHandle; // stays for as long as this is open
  final WaitStrategy wait;
  private final String what;
  private final LongConsumer interrupt;
  private final Object free = new Object(); // its monitor is held for moments only
  private volatile boolean closing;
  private long address; // changed only with both monitors held

  /**
   * @param what names it in errors
   */
  Handle(String what, Ring ring, WaitStrategy wait, long address, LongConsumer interrupt) {
    this.what = what;
    this.ring = ring;
    this.ringHandle = ring.handle();
    this.wait = wait;
    this.address = address;
    this.interrupt = interrupt;
  }

  /** For who holds the monitor: for more than giving messages back. */
  final long handle() {
    if (!isOpen()) {
      throw ring.closed(what);
    }
    return address;
  }

  final boolean isOpen() {
    return !closing && address != 0;
  }

  /** For who holds the monitor: 0 when it has been freed. */
  final long address() {
    return address;
  }

  /**
   * Ends the waits in it, and lets none begin, so that its monitor becomes free; then leaves the ring.
   * The second call does nothing.
   *
   * @param how frees the handle
   */
  final void leave(LongConsumer how) {
    synchronized (free) {
      closing = true;
      if (address != 0) {
        interrupt.accept(address);
      }
    }
    synchronized (this) {
      if (address != 0) {
        synchronized (free) {
          how.accept(address);
          address = 0;
        }
        ring.release();
      }
    }
  }

  /** A moment on CLOCK_MONOTONIC, which System.nanoTime() reads on Linux. */
  static long deadline(Duration timeout) {
    long now = System.nanoTime();
    long nanos = TimeUnit.NANOSECONDS.convert(timeout); // NEVER if it does not fit
    return nanos >= NEVER - now ? NEVER : now + Math.max(nanos, 0);
  }

  /** A wait ends after 50 ms, or 20 ms for each sleeper of the ring, so this is called often enough. */
  static void checkInterrupt() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted while waiting for a ring");
    }
  }

  /** Refuses what only others may do with it while a callback has its messages. */
  final void refuseInside(boolean isInside, String done, String callback) {
    if (isInside) {
      throw new RingException(
          Status.INVALID, "ring \"%s\": a %s cannot be %s by its %s; let the %s return, or throw",
          ring.name(), what, done, callback, callback);
    }
  }
}
