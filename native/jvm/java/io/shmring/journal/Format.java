package io.shmring.journal;

/** The places of a segment's numbers, which are little-endian; {@code segments.py} explains them. */
final class Format {
  static final String SUFFIX = ".journal";
  static final int NAME_DIGITS = 20;

  /** All records begin at multiples of this. */
  static final int ALIGN = 64;

  static final int SEGMENT_BYTES = 64;
  static final long SEGMENT_MAGIC = 0x314c4e4a524d4853L; // SHMRJNL1
  static final int VERSION = 1;
  static final int SEGMENT_CRC = 8;
  static final int SEGMENT_VERSION = 12; // from here on the checksum goes
  static final int SEGMENT_UUID = 24; // big-endian, as all UUIDs
  static final int SEGMENT_FIRST = 40;
  static final int SEGMENT_SCHEMA_BYTES = 16;
  static final int MOST_SCHEMA_BYTES = 1 << 28;

  static final int RECORD_BYTES = 64;
  static final int RECORD_MAGIC = 0x014653ab;
  static final int RECORD_CRC = 4;
  static final int RECORD_FIRST = 8; // from here on the checksum goes
  static final int RECORD_END = 16;
  static final int RECORD_SYNCED = 24;
  static final int RECORD_PAYLOAD_BYTES = 32;
  static final int RECORD_MESSAGES = 44;
  static final int RECORD_PAYLOAD_CRC = 40;
  static final int RECORD_PAYLOAD = 48;

  static final int ENTRY_BYTES = 20;
  static final int ENTRY_TIME = 0;
  static final int ENTRY_SLOT = 8;
  static final int ENTRY_LENGTH = 12;
  static final int ENTRY_KIND = 16;
  static final int ENTRY_SHIFT = 17;

  private Format() {}

  static long roundUp(long bytes) {
    return (bytes + ALIGN - 1) & -ALIGN;
  }
}
