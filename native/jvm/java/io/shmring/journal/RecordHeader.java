package io.shmring.journal;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.nio.ByteBuffer;
import java.nio.file.Path;

/**
 * A record's header and its entries, which match their checksum.
 *
 * @param first sequence of its first slot
 * @param end sequence behind its last slot
 * @param synced everything below this sequence was on disk when the record was written
 * @param entries a description of each message
 * @param payload where its slots begin in the file
 * @param next where the record behind it begins
 */
record RecordHeader(
    long first,
    long end,
    long synced,
    ByteBuffer entries,
    long payload,
    long payloadBytes,
    int payloadCrc,
    long next) {

  int messages() {
    return entries.capacity() / Format.ENTRY_BYTES;
  }

  /** The sequence of a message. */
  long id(int message) {
    return first + Integer.toUnsignedLong(number(message, Format.ENTRY_SLOT));
  }

  long time(int message) {
    return entries.getLong(message * Format.ENTRY_BYTES + Format.ENTRY_TIME);
  }

  int kind(int message) {
    return Byte.toUnsignedInt(
        entries.get(message * Format.ENTRY_BYTES + Format.ENTRY_KIND));
  }

  int slots(int message) {
    long bytes = shift(message) + length(message);
    return (int) Math.max(1, (bytes + Ring.SLOT_BYTES - 1) / Ring.SLOT_BYTES);
  }

  /** The bytes of a message, as a part of the payload. */
  ByteBuffer data(int message, ByteBuffer slots, Path segment) {
    long begin =
        Integer.toUnsignedLong(number(message, Format.ENTRY_SLOT)) * Ring.SLOT_BYTES
            + shift(message);
    if (begin + length(message) > slots.capacity()) {
      throw new RingException(
          Status.DAMAGED,
          String.format("%s: message %d reaches beyond its record", segment, id(message)));
    }
    return slots.slice((int) begin, (int) length(message));
  }

  private long length(int message) {
    return Integer.toUnsignedLong(number(message, Format.ENTRY_LENGTH));
  }

  private int shift(int message) {
    return Byte.toUnsignedInt(
        entries.get(message * Format.ENTRY_BYTES + Format.ENTRY_SHIFT));
  }

  private int number(int message, int offset) {
    return entries.getInt(message * Format.ENTRY_BYTES + offset);
  }
}
