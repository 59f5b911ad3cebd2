package io.shmring.arrow;

import io.shmring.Message;
import io.shmring.arrow.BatchDecoder.Frame;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import org.apache.arrow.flatbuf.Buffer;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.compression.CompressionCodec;
import org.apache.arrow.vector.compression.CompressionUtil;

/** The buffers of one batch, by their numbers. Each length has been checked against the message. */
interface Body {
  /** Returns the number of bytes of a buffer after decompression. */
  long length(int buffer);

  /** Prepares a buffer for copyTo(); decompresses it if it is compressed. */
  void prepare(int buffer);

  /** Copies the bytes of a prepared buffer from `offset` on until `to` is full. */
  void copyTo(int buffer, long offset, ByteBuffer to);

  /** Returns the most memory that copies of the buffers may take. */
  long limit();

  /** Buffers as they lie in a message. */
  record Stored(Message message, Frame frame, RecordBatch batch) implements Body {
    /**
     * Copies may take FACTOR times the bytes of the message, plus {@link #SMALL} bytes. The limit
     * stops a small damaged message from asking for any amount of memory.
     */
    private static final int FACTOR = 16;

    private static final long SMALL = 1 << 20;

    @Override
    public long length(int buffer) {
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

    @Override
    public void prepare(int buffer) {}

    @Override
    public void copyTo(int buffer, long offset, ByteBuffer to) {
      message.copyTo(place(buffer) + offset, to);
    }

    @Override
    public long limit() {
      return FACTOR * message.length() + SMALL;
    }
  }

  /** Buffers that have to be decompressed. */
  final class Compressed implements Body {
    private static final int PREFIX = (int) CompressionUtil.SIZE_OF_UNCOMPRESSED_LENGTH;

    private final Stored stored;
    private final Arena arena;
    private final CompressionCodec codec;
    private final Map<Integer, ArrowBuf> decompressed = new HashMap<>();

    Compressed(Stored stored, Arena arena) {
      this.stored = stored;
      this.arena = arena;
      this.codec =
          CompressionCodec.Factory.INSTANCE.createCodec(
              CompressionUtil.CodecType.fromCompressionType(stored.batch.compression().codec()));
    }

    @Override
    public long length(int buffer) {
      long length = stored.length(buffer);
      if (length == 0) {
        return 0;
      }
      ByteBuffer prefix = ByteBuffer.allocate(PREFIX).order(ByteOrder.LITTLE_ENDIAN);
      if (length >= PREFIX) {
        stored.copyTo(buffer, 0, prefix);
      }
      long said = length < PREFIX ? Long.MIN_VALUE : prefix.getLong(0);
      if (said < CompressionUtil.NO_COMPRESSION_LENGTH) {
        throw new IllegalArgumentException("a compressed buffer of " + length + " bytes");
      }
      return said == CompressionUtil.NO_COMPRESSION_LENGTH ? length - PREFIX : said;
    }

    @Override
    public void prepare(int buffer) {
      ArrowBuf bytes = decompressed.computeIfAbsent(buffer, this::decompress);
      if (bytes.capacity() < length(buffer)) {
        throw new IllegalArgumentException(
            "a compressed buffer of " + bytes.capacity() + " instead of " + length(buffer) + " bytes");
      }
    }

    private ArrowBuf decompress(int buffer) {
      int length = Math.toIntExact(stored.length(buffer));
      ArrowBuf bytes = arena.allocator.buffer(length);
      stored.copyTo(buffer, 0, bytes.nioBuffer(0, length));
      bytes.writerIndex(length);
      return codec.decompress(arena.allocator, bytes);
    }

    @Override
    public void copyTo(int buffer, long offset, ByteBuffer to) {
      decompressed.get(buffer).getBytes(offset, to);
    }

    @Override
    public long limit() {
      return Arena.limit(stored.message.length());
    }
  }
}
