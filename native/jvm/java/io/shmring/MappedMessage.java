package io.shmring;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * The bytes of a message, in place. They stay mapped until this is closed; a use of {@link
 * #address()} or {@link #buffer()} afterwards may crash the process or read anything.
 */
public final class MappedMessage implements AutoCloseable {
  private final long address;
  private final long length;
  private final Runnable release;
  private final AtomicBoolean open = new AtomicBoolean(true);

  /**
   * @param release lets the memory be unmapped; it runs once
   */
  MappedMessage(long address, long length, Runnable release) {
    this.address = address;
    this.length = length;
    this.release = release;
  }

  public long address() {
    return address;
  }

  public long length() {
    return length;
  }

  /** A read-only buffer over the message, which must have at most 2 GiB. */
  public ByteBuffer buffer() {
    return Native.wrap(address, Math.toIntExact(length)).asReadOnlyBuffer();
  }

  @Override
  public void close() {
    if (open.compareAndSet(true, false)) {
      release.run();
    }
  }
}
