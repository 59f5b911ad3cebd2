package io.shmring;

import java.util.UUID;

// CHANGE: a new option of a ring
/**
 * The properties that were fixed when a ring was made.
 *
 * @param slots number of 300-byte slots
 * @param singleProducer a second living producer is refused
 * @param checksum every message has a CRC32C, which is checked
 * @param layoutMajor layout version of the file
 * @param layoutMinor layout version of the file
 * @param participants the most participants at a time
 * @param firstSequence where its sequences begin; after a restore, behind those of the journal
 * @param uuid identifies this ring; a later ring of the same name has another uuid
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
