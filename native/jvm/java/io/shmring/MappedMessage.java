package io.shmring;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The bytes of a message, in place. They stay mapped until this object is closed. A later use of
 * {@link #address()} or {@link #buffer()} may crash the process or read anything.
 */
public final class MappedMessage implements AutoCloseable {
  private final long address;
  private final long length;
  private final Ring ring;
  private final AtomicBoolean open = new AtomicBoolean(true);

  MappedMessage(Ring ring, long address, long length) {
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

  /** Returns a read-only buffer over the message, which must have at most 2 GiB. */
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
