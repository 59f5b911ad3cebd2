package io.shmring;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The memory of a message. It stays mapped until this is closed; who uses {@link #address()} or
 * {@link #buffer()} afterwards crashes the process.
 */
public final class Loan implements AutoCloseable {
  private final Ring ring;
  private final long address;
  private final long length;
  private final AtomicBoolean open = new AtomicBoolean(true);

  Loan(Ring ring, long address, long length) {
    this.ring = ring;
    this.address = address;
    this.length = length;
    ring.retain();
  }

  public long address() {
    return address;
  }

  public long length() {
    return length;
  }

  /** A read-only buffer over the message, which has at most 2 GiB then. */
  public ByteBuffer buffer() {
    return Native.wrap(address, Math.toIntExact(length)).asReadOnlyBuffer();
  }

  @Override
  public void close() {
    if (open.compareAndSet(true, false)) {
      ring.release();
    }
  }
}
