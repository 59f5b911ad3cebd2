package io.shmring;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.function.LongConsumer;

/**
 * A producer or a consumer: a handle of the C library. One thread may close it while another thread
 * waits in it. A thread that uses the handle holds this object's monitor, also while it waits.
 *
 * <p>The monitor also keeps the ring mapped while Java reads or writes there: handlers, writers and
 * copies run with the monitor held, after a check that the handle is open, and closing takes the
 * monitor before the ring can be unmapped.
 */
abstract class Handle {
  static final long NEVER = Long.MAX_VALUE;

  final Ring ring;
  final long ringHandle; // handle of the ring, valid while this handle is open
  final WaitStrategy wait;
  private final String what;
  private final LongConsumer interrupt;
  // Guards `address` against close(); held only for moments, never during a wait.
  private final Object free = new Object();
  private volatile boolean closing;
  private long address; // the native handle, 0 after close(); changed only with both monitors held

  /**
   * @param what word for this object in errors: "producer" or "consumer"
   */
  Handle(String what, Ring ring, WaitStrategy wait, long address, LongConsumer interrupt) {
    this.what = what;
    this.ring = ring;
    this.ringHandle = ring.handle();
    this.wait = wait;
    this.address = address;
    this.interrupt = interrupt;
  }

  /**
   * Returns the native handle, or throws if this object was closed. The caller holds the monitor.
   */
  final long handle() {
    if (!isOpen()) {
      throw ring.closed(what);
    }
    return address;
  }

  final boolean isOpen() {
    return !closing && address != 0;
  }

  /**
   * Returns the native handle also while this object is being closed, so that messages can be given
   * back; 0 after it was freed. The caller holds the monitor.
   */
  final long address() {
    return address;
  }

  /**
   * Ends the waits of other threads and lets no new wait begin, so that this thread gets the
   * monitor; then leaves the ring. The second call does nothing.
   *
   * @param how a call that frees the native handle
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

  /**
   * Returns the moment when a timeout ends, on CLOCK_MONOTONIC, which System.nanoTime() reads on
   * Linux.
   */
  static long deadline(Duration timeout) {
    long now = System.nanoTime();
    // convert() returns Long.MAX_VALUE, which is NEVER, if a long cannot hold the nanoseconds.
    long nanos = TimeUnit.NANOSECONDS.convert(timeout);
    return nanos >= NEVER - now ? NEVER : now + Math.max(nanos, 0);
  }

  /**
   * Throws if this thread was interrupted. Waits call this method between native waits, because an
   * interrupt does not end a native wait. A native wait lasts at most 50 ms, or longer if many
   * participants sleep on the ring (see shmring_wait_space() in shmring.h).
   */
  static void checkInterrupt() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException("interrupted while waiting for a ring");
    }
  }

  /**
   * Throws if a handler or writer that runs inside this producer or consumer has called a method of
   * this same object that is not allowed there, for example close().
   *
   * @param isInside whether the callback runs now
   * @param done the method, as a participle: "a consumer cannot be closed"
   * @param callback word for the callback: "handler" or "writer"
   */
  final void refuseInside(boolean isInside, String done, String callback) {
    if (isInside) {
      throw new RingException(
          Status.INVALID, "ring \"%s\": a %s cannot be %s by its %s; let the %s return, or throw",
          ring.name(), what, done, callback, callback);
    }
  }
}
