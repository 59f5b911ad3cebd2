package io.shmring.journal;

import io.shmring.RingException;
import io.shmring.Status;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Optional;
import java.util.UUID;
import java.util.zip.CRC32C;

/**
 * One open file of a journal. It can be read even if the journal forgets it meanwhile. It is read and
 * never mapped: the next writer cuts a torn end off, and memory mapped there would be gone.
 */
final class Segment implements AutoCloseable {
  private static final int SEARCH_BYTES = 1 << 20;

  private final Path path;
  private final FileChannel file;
  private final boolean last;
  private final byte[] checked; // of the header; the checksum of each record begins with it, too
  private final int crc;
  private final UUID ring;
  private final long first;
  private final byte[] schema;

  private Segment(Path path, FileChannel file, boolean last) throws IOException {
    this.path = path;
    this.file = file;
    this.last = last;
    ByteBuffer header = read(0, Format.SEGMENT_BYTES);
    if (header.capacity() < Format.SEGMENT_BYTES || header.getLong(0) != Format.SEGMENT_MAGIC) {
      throw damaged(" is no journal segment: no header of 64 bytes at byte 0");
    }
    if (header.getInt(Format.SEGMENT_VERSION) != Format.VERSION) {
      throw new RingException(
          Status.VERSION,
          String.format(
              "%s has version %s; this shmring reads %d",
              path,
              Integer.toUnsignedString(header.getInt(Format.SEGMENT_VERSION)),
              Format.VERSION));
    }
    int schemaBytes = header.getInt(Format.SEGMENT_SCHEMA_BYTES);
    boolean sane = schemaBytes >= 0 && schemaBytes <= Format.MOST_SCHEMA_BYTES;
    ByteBuffer rest = read(Format.SEGMENT_BYTES, sane ? schemaBytes : 0);
    this.schema = new byte[rest.capacity()];
    rest.get(schema);
    int from = Format.SEGMENT_VERSION;
    this.checked =
        ByteBuffer.allocate(Format.SEGMENT_BYTES - from + schema.length)
            .put(header.array(), from, Format.SEGMENT_BYTES - from)
            .put(schema)
            .array();
    this.crc = header.getInt(Format.SEGMENT_CRC);
    if (crc != crc(ByteBuffer.wrap(checked))) {
      throw damaged(": the header at byte 0 does not match its checksum");
    }
    this.first = header.getLong(Format.SEGMENT_FIRST);
    header.order(ByteOrder.BIG_ENDIAN);
    this.ring =
        new UUID(
            header.getLong(Format.SEGMENT_UUID),
            header.getLong(Format.SEGMENT_UUID + Long.BYTES));
  }

  /**
   * @param last whether it is the newest segment, whose end may be torn
   * @return empty if it has no header and so no records: it is being made, or its writer died then
   * @throws java.nio.file.NoSuchFileException if the journal has forgotten it
   */
  static Optional<Segment> open(Path path, boolean last) throws IOException {
    FileChannel file = FileChannel.open(path, StandardOpenOption.READ);
    boolean opened = false;
    try {
      Optional<Segment> segment = begun(path, file, last);
      opened = segment.isPresent();
      return segment;
    } finally {
      if (!opened) {
        file.close();
      }
    }
  }

  private static Optional<Segment> begun(Path path, FileChannel file, boolean last)
      throws IOException {
    try {
      return Optional.of(new Segment(path, file, last));
    } catch (RingException error) {
      if (error.status() != Status.DAMAGED || !last || hasRecords(file)) {
        throw error;
      }
      return Optional.empty();
    }
  }

  /** Whether it has records: its header is synced before its first record. */
  private static boolean hasRecords(FileChannel file) throws IOException {
    for (long at = 0; at < file.size(); at += SEARCH_BYTES) {
      if (found(read(file, at, SEARCH_BYTES), 0) >= 0) {
        return true;
      }
    }
    return false;
  }

  /** The place in bytes read from an aligned offset where a record may begin; -1 if there is none. */
  private static int found(ByteBuffer piece, int from) {
    for (int at = from; at + Integer.BYTES <= piece.capacity(); at += Format.ALIGN) {
      if (piece.getInt(at) == Format.RECORD_MAGIC) {
        return at;
      }
    }
    return -1;
  }

  Path path() {
    return path;
  }

  boolean isLast() {
    return last;
  }

  /** The header's checksum, which no other segment has. */
  int crc() {
    return crc;
  }

  /** The uuid of the ring from which it was written. */
  UUID ring() {
    return ring;
  }

  /** The ring's Arrow schema as an IPC message; empty if it had none. */
  byte[] schema() {
    return schema.clone();
  }

  /** Checks whether a record's slots match their checksum. */
  interface Check {
    boolean isWhole(RecordHeader record) throws IOException;
  }

  /** The records, in order. */
  final class Walk {
    private final Check check;
    private final long size = file.size();
    private long offset = Format.roundUp(Format.SEGMENT_BYTES + (long) schema.length);
    private long end = first;

    /**
     * @param check called with each next record
     */
    Walk(Check check) throws IOException {
      this.check = check;
    }

    /** The sequence behind the last record so far. */
    long end() {
      return end;
    }

    /**
     * Returns the next record; empty at the end, also at a torn end.
     *
     * @throws RingException if data that had been on disk is unreadable; the text says where
     */
    Optional<RecordHeader> next() throws IOException {
      if (offset >= size) {
        return Optional.empty();
      }
      Optional<RecordHeader> record = parse(offset, size);
      if (record.isEmpty()
          || record.get().first() < end
          || record.get().payloadBytes() > size - record.get().payload()
          || !check.isWhole(record.get())) {
        if (!last || isFollowed()) {
          throw damaged(
              String.format(
                  ": the record at byte %d (sequence %d) is damaged; `shmring journal truncate` cuts"
                      + " the journal there and keeps a copy",
                  offset, end));
        }
        offset = size;
        return Optional.empty();
      }
      offset = record.get().next();
      end = record.get().end();
      return record;
    }

    /** Whether a later record says that this one had been on disk. */
    private boolean isFollowed() throws IOException {
      for (long at = offset + Format.ALIGN; at < size; at += SEARCH_BYTES) {
        ByteBuffer piece = read(at, SEARCH_BYTES);
        for (int i = found(piece, 0); i >= 0; i = found(piece, i + Format.ALIGN)) {
          Optional<RecordHeader> later = parse(at + i, size);
          if (later.isPresent() && later.get().synced() > end) {
            return true;
          }
        }
      }
      return false;
    }
  }

  /** Returns the record at an offset, if its header and entries are valid. */
  private Optional<RecordHeader> parse(long offset, long size) throws IOException {
    ByteBuffer header = read(offset, Format.RECORD_BYTES);
    if (header.capacity() < Format.RECORD_BYTES || header.getInt(0) != Format.RECORD_MAGIC) {
      return Optional.empty();
    }
    long recordFirst = header.getLong(Format.RECORD_FIRST);
    long recordEnd = header.getLong(Format.RECORD_END);
    long nbytes = header.getLong(Format.RECORD_PAYLOAD_BYTES);
    long entryBytes =
        Integer.toUnsignedLong(header.getInt(Format.RECORD_MESSAGES)) * Format.ENTRY_BYTES;
    long begin = Integer.toUnsignedLong(header.getInt(Format.RECORD_PAYLOAD));
    if (recordFirst < 0
        || recordEnd <= recordFirst
        || entryBytes > Integer.MAX_VALUE
        || begin < Format.RECORD_BYTES + entryBytes
        || nbytes < 0
        || Format.RECORD_BYTES + entryBytes > size - offset) {
      return Optional.empty();
    }
    ByteBuffer entries = read(offset + Format.RECORD_BYTES, (int) entryBytes);
    CRC32C sum = new CRC32C();
    sum.update(checked);
    sum.update(ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN).putLong(0, offset));
    sum.update(header.array(), Format.RECORD_FIRST, Format.RECORD_BYTES - Format.RECORD_FIRST);
    sum.update(entries.array());
    if ((int) sum.getValue() != header.getInt(Format.RECORD_CRC)) {
      return Optional.empty();
    }
    return Optional.of(
        new RecordHeader(
            recordFirst,
            recordEnd,
            header.getLong(Format.RECORD_SYNCED),
            entries,
            offset + begin,
            nbytes,
            header.getInt(Format.RECORD_PAYLOAD_CRC),
            Format.roundUp(offset + begin + nbytes)));
  }

  boolean isWhole(RecordHeader record) throws IOException {
    CRC32C sum = new CRC32C();
    for (long at = 0; at < record.payloadBytes(); at += SEARCH_BYTES) {
      sum.update(
          read(record.payload() + at, (int) Math.min(record.payloadBytes() - at, SEARCH_BYTES)));
    }
    return (int) sum.getValue() == record.payloadCrc();
  }

  /** Returns a copy of a record's slots; empty if they do not match their checksum. */
  Optional<ByteBuffer> payload(RecordHeader record) throws IOException {
    if (record.payloadBytes() > Integer.MAX_VALUE) {
      throw new RingException(
          Status.TOO_LARGE,
          String.format(
              "%s: message %d and those with it take %d bytes, and Java reads 2 GiB at a time;"
                  + " read them by shmring.durable.replay() in Python",
              path, record.first(), record.payloadBytes()));
    }
    ByteBuffer slots = ByteBuffer.allocateDirect((int) record.payloadBytes());
    fill(file, slots, record.payload());
    slots.rewind(); // missing bytes behind the end of the file are zeros, and fail the check
    return crc(slots.duplicate()) == record.payloadCrc() ? Optional.of(slots) : Optional.empty();
  }

  private static int crc(ByteBuffer data) {
    CRC32C sum = new CRC32C();
    sum.update(data);
    return (int) sum.getValue();
  }

  /** Reads bytes from `at` on, at most so many. */
  private ByteBuffer read(long at, int count) throws IOException {
    return read(file, at, count);
  }

  private static ByteBuffer read(FileChannel file, long at, int count) throws IOException {
    int there = (int) Math.max(0, Math.min(count, file.size() - at));
    ByteBuffer data = ByteBuffer.allocate(there).order(ByteOrder.LITTLE_ENDIAN);
    fill(file, data, at);
    return data.rewind();
  }

  private static void fill(FileChannel file, ByteBuffer data, long at) throws IOException {
    int got = 0;
    while (data.hasRemaining() && got >= 0) {
      got = file.read(data, at + data.position());
    }
  }

  private RingException damaged(String how) {
    return new RingException(Status.DAMAGED, path + how);
  }

  @Override
  public void close() throws IOException {
    file.close();
  }
}
