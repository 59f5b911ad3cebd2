package io.shmring;

/**
 * A branch as it stands.
 *
 * @param position the next sequence to be taken
 * @param released everything below has been released
 * @param ends of the stream, that the branch has come to
 * @param consumers that share its work
 * @param dropOldest it never holds producers back and loses the oldest messages instead
 */
public record BranchInfo(
    long position, long released, long ends, int consumers, boolean dropOldest) {}
