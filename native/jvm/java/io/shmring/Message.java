package io.shmring;

import java.nio.ByteBuffer;
import java.util.Objects;

/** A message that a {@link Lease} or a {@link Range} gives access to. */
public final class Message {
  private final Access access;
  private final long id;
  private final long time;
  private final long address;
  private final long length;
  private final int kind;
  private final int slots;

  Message(Access access, long[] words) {
    this.access = access;
    this.id = words[1];
    this.time = words[2];
    this.address = words[3];
    this.length = words[4];
    this.kind = (int) words[5];
    this.slots = (int) words[6];
  }

  public long id() {
    return id;
  }

  /** When it was published, in nanoseconds since 1970; 0 where the ring keeps no time. */
  public long time() {
    return time;
  }

  public long length() {
    return length;
  }

  /** One of {@link Kind}. */
  public int kind() {
    return kind;
  }

  public int slots() {
    return slots;
  }

  public boolean isEnd() {
    return kind == Kind.END;
  }

  /** A copy of the message. */
  public byte[] bytes() {
    byte[] bytes = new byte[Math.toIntExact(length)];
    synchronized (access.lock()) {
      access.check();
      Native.copyToArray(address, bytes, 0, bytes.length);
    }
    return bytes;
  }

  /** Copies the bytes from `offset` on until `to` is full. */
  public void copyTo(long offset, ByteBuffer to) {
    int count = to.remaining();
    Objects.checkFromIndexSize(offset, count, length);
    if (to.isReadOnly()) {
      throw new java.nio.ReadOnlyBufferException();
    }
    synchronized (access.lock()) {
      access.check();
      if (to.isDirect()) {
        Native.copyToBuffer(address + offset, to, to.position(), count);
      } else {
        Native.copyToArray(address + offset, to.array(), to.arrayOffset() + to.position(), count);
      }
    }
    to.position(to.limit());
  }

  /**
   * The message where it lies, for libraries that count references. Its memory stays mapped until
   * that is closed; that nobody overwrites it is still up to the lease.
   */
  public MappedMessage mapped() {
    synchronized (access.lock()) {
      access.check();
      return new MappedMessage(access.ring(), address, length);
    }
  }
}
