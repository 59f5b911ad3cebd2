package io.shmring;

/**
 * A branch as it stands.
 *
 * @param position the next sequence to be taken
 * @param released everything below has been released
 * @param members that share its work
 */
public record BranchInfo(long position, long released, int members) {}
