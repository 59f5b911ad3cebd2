package io.shmring.arrow;

import io.shmring.Message;
import io.shmring.arrow.BatchDecoder.Frame;
import java.nio.ByteBuffer;
import org.apache.arrow.flatbuf.BodyCompression;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.vector.compression.NoCompressionCodec;
import org.apache.arrow.vector.ipc.message.ArrowBodyCompression;

/** The buffers of one batch in a message, by their numbers. */
record Body(Message message, Frame frame, RecordBatch batch) {
  /**
   * Copies may take FACTOR times the bytes of the message, plus {@link #SMALL} bytes. The limit
   * stops a small damaged message from asking for any amount of memory.
   */
  private static final int FACTOR = 16;

  private static final long SMALL = 1 << 20;

  Body(Message message, Frame frame) {
    this(message, frame, frame.batch());
  }

  /** Returns the number of bytes of a buffer in the message, after a check against the message. */
  long length(int buffer) {
    Buffer found = batch.buffers(buffer);
    long room = frame.end() - frame.body();
    if (found.offset() < 0 || found.length() < 0 || found.offset() > room - found.length()) {
      throw new IllegalArgumentException(
          "a buffer of " + found.length() + " bytes at " + found.offset() + " of " + room);
    }
    return found.length();
  }

  /** Returns the offset of a buffer in the message. */
  long place(int buffer) {
    return frame.body() + batch.buffers(buffer).offset();
  }

  /** Copies the bytes of a buffer from `offset` on until `to` is full. */
  void copyTo(int buffer, long offset, ByteBuffer to) {
    message.copyTo(place(buffer) + offset, to);
  }

  ArrowBodyCompression compression() {
    BodyCompression found = batch.compression();
    return found == null
        ? NoCompressionCodec.DEFAULT_BODY_COMPRESSION
        : new ArrowBodyCompression(found.codec(), found.method());
  }

  /** Returns the maximum bytes of memory that copies of the buffers may take. */
  long limit() {
    return FACTOR * message.length() + SMALL;
  }
}
