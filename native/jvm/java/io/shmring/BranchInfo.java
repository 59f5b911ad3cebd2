package io.shmring;

/**
 * The state of a branch at one moment.
 *
 * @param position the next sequence to take
 * @param released the sequence below which all messages have been released
 * @param ends number of end markers that the branch has reached
 * @param consumers number of consumers that share the branch's messages
 * @param dropOldest whether the branch loses its oldest messages instead of holding producers back;
 *     only its open leases hold producers back
 */
public record BranchInfo(
    long position, long released, long ends, int consumers, boolean dropOldest) {}
