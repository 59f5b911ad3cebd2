package io.shmring;

import java.util.UUID;

// CHANGE: edit this for a new option of a ring
/**
 * The properties of a ring that were fixed when it was made.
 *
 * @param slots number of 300-byte slots
 * @param singleProducer whether a second living producer is refused
 * @param checksum whether every message has a CRC32C, which readers check
 * @param layoutMajor major version of the file's layout
 * @param layoutMinor minor version of the file's layout
 * @param participants upper limit of the participants at one time
 * @param firstSequence first sequence of the ring; for a ring restored from a journal, the sequence
 *     after the journal's last message
 * @param uuid identity of the ring; a later ring of the same name has another uuid
 */
public record RingInfo(
    long slots,
    boolean singleProducer,
    boolean checksum,
    int layoutMajor,
    int layoutMinor,
    int participants,
    long firstSequence,
    UUID uuid) {}
