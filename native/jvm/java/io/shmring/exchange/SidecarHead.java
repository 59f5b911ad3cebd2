package io.shmring.exchange;

import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.exchange.Client.Work;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

// CHANGE: edit this for a new field of a request
/**
 * The fixed part of a request or an answer; sidecars/wire.py describes its bytes.
 *
 * @param batches in an answer's last piece: number of batches that the client should put into one
 *     request, with 0 for 1 batch; if the flag LARGER is set, number of slots that the reply ring
 *     needs
 */
record SidecarHead(long number, int piece, int flags, int batches, long workedNanos) {
  static final int BYTES = 256;

  static final int ERROR = 1;
  static final int LAST = 2;
  static final int AGAIN = 4;
  static final int LARGER = 8;
  static final int KEEPS = 16;

  static final int KIND_REQUEST = 16;

  private static final byte[] MAGIC = {'S', 'M', 'R', 'Q'};
  private static final int VERSION = 1;
  private static final int NUMBER = 32;
  private static final int APPLICATION = 40;
  private static final int APPLICATION_BYTES = 80;
  private static final int REPLY_RING = 120;
  private static final int REPLY_RING_BYTES = 120;
  private static final int BATCHES = 240;
  private static final int WORKED = 248;

  /**
   * Returns the head of a request.
   *
   * @param rows number of rows that the function gets at a time; 0 for all rows
   */
  static byte[] request(long number, String replyRing, Work work, int rows) {
    ByteBuffer bytes = ByteBuffer.allocate(BYTES).order(ByteOrder.LITTLE_ENDIAN);
    bytes.put(MAGIC).putShort((short) VERSION).putShort((short) KEEPS).putInt(0);
    bytes.putInt(work.stage()).putInt(work.partition()).putInt(rows);
    bytes.putLong(work.attempt()).putLong(number);
    put(bytes, APPLICATION, work.application(), APPLICATION_BYTES);
    put(bytes, REPLY_RING, replyRing, REPLY_RING_BYTES);
    return bytes.array();
  }

  private static void put(ByteBuffer to, int at, String text, int most) {
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    to.put(at, bytes, 0, Math.min(bytes.length, most));
  }

  /**
   * @throws RingException if the message has no head, or a head of another version
   */
  static SidecarHead of(Message message, String ring) {
    if (message.length() < BYTES) {
      throw damaged(
          ring,
          String.format(
              "a message of %d bytes is no request or answer; do client and sidecar run the same"
                  + " shmring?",
              message.length()));
    }
    ByteBuffer bytes = ByteBuffer.allocate(BYTES).order(ByteOrder.LITTLE_ENDIAN);
    message.copyTo(0, bytes);
    bytes.flip();
    byte[] magic = new byte[MAGIC.length];
    bytes.get(magic);
    int version = Short.toUnsignedInt(bytes.getShort());
    if (!Arrays.equals(magic, MAGIC) || version != VERSION) {
      throw damaged(
          ring,
          String.format(
              "a message has magic %s and version %d, not SMRQ and %d; do client and sidecar run the"
                  + " same shmring?",
              new String(magic, StandardCharsets.ISO_8859_1), version, VERSION));
    }
    int flags = Short.toUnsignedInt(bytes.getShort());
    return new SidecarHead(
        bytes.getLong(NUMBER),
        bytes.getInt(),
        flags,
        bytes.getInt(BATCHES),
        bytes.getLong(WORKED));
  }

  private static RingException damaged(String ring, String what) {
    return new RingException(Status.DAMAGED, "ring \"%s\": %s", ring, what);
  }

  boolean has(int flag) {
    return (flags & flag) != 0;
  }
}
