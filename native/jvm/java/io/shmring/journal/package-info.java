/**
 * Reads journals: the messages of a ring that Python has put on disk. A {@link
 * io.shmring.journal.Journal} is a directory, a {@link io.shmring.journal.SegmentReader} gives the
 * messages of one of its files; what a file holds, byte by byte, stands at the top of {@code
 * src/shmring/durable/journal/segments.py}.
 */
package io.shmring.journal;
