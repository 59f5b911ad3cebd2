package io.shmring;

/**
 * The state of a branch.
 *
 * @param position the next sequence to be taken
 * @param released all sequences below this one have been released
 * @param ends number of ends of the stream that the branch has reached
 * @param consumers number of consumers that share its messages
 * @param dropOldest it loses the oldest messages instead of holding producers back; only its leases
 *     hold them
 */
public record BranchInfo(
    long position, long released, long ends, int consumers, boolean dropOldest) {}
