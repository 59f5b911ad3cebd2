/**
 * Reads journals: the messages of a ring that Python has put on disk. A {@link
 * io.shmring.journal.Journal} is a directory, a {@link io.shmring.journal.SegmentReader} returns the
 * messages of one of its files. The format of the files is described at the top of {@code
 * src/shmring/durable/journal/segments.py}.
 */
package io.shmring.journal;
