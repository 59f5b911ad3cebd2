package io.shmring;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;

/** A message in memory of this process. */
final class KeptMessage extends Message {
  private final ByteBuffer data;

  KeptMessage(long id, long time, int kind, int slots, ByteBuffer data) {
    super(id, time, data.remaining(), kind, slots);
    this.data = data;
  }

  @Override
  void copy(long offset, int count, ByteBuffer to) {
    Parts.copy(data, data.position() + (int) offset, count, to);
  }

  @Override
  public MappedMessage mapped() {
    return new MappedMessage(
        Native.address(data) + data.position(),
        length(),
        () -> Reference.reachabilityFence(data)); // which keeps its memory until then
  }
}
