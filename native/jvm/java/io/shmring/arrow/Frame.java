package io.shmring.arrow;

import io.shmring.Message;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * One encapsulated IPC message inside a ring's message: length, metadata, body. Its numbers come
 * from another process and have been checked against the message.
 *
 * @param metadata the flatbuffer, copied out
 * @param body where the body begins in the ring's message
 * @param end where it ends
 */
record Frame(org.apache.arrow.flatbuf.Message metadata, long body, long end) {
  private static final int CONTINUATION = -1;

  /** Reads the frame that begins at `offset`. */
  static Frame at(Message message, long offset) {
    ByteBuffer prefix = little(8);
    message.copyTo(offset, prefix);
    int length = prefix.getInt(4);
    if (prefix.getInt(0) != CONTINUATION || length <= 0 || length > message.length()) {
      throw new IllegalArgumentException("no Arrow message at byte " + offset);
    }
    ByteBuffer bytes = little(length);
    message.copyTo(offset + 8, bytes);
    bytes.rewind();
    org.apache.arrow.flatbuf.Message metadata =
        org.apache.arrow.flatbuf.Message.getRootAsMessage(bytes);
    long body = offset + 8 + length;
    if (metadata.bodyLength() < 0 || metadata.bodyLength() > message.length() - body) {
      throw new IllegalArgumentException(
          "an Arrow body of " + metadata.bodyLength() + " bytes at byte " + body);
    }
    return new Frame(metadata, body, body + metadata.bodyLength());
  }

  private static ByteBuffer little(int size) {
    return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
  }

  byte type() {
    return metadata.headerType();
  }
}
