package io.shmring;

/**
 * The options with which a branch is made. A branch that exists already keeps its own options.
 *
 * @param start where the branch begins
 * @param sequence first sequence for {@link Start#SEQUENCE}; ignored otherwise
 * @param exclusive whether the branch has one consumer at a time
 * @param ephemeral whether the branch is dropped with its last consumer
 * @param dropOldest whether the branch loses its oldest messages instead of holding producers back;
 *     only its open leases hold producers back
 */
public record BranchOptions(
    Start start, long sequence, boolean exclusive, boolean ephemeral, boolean dropOldest) {

  /** The place where a new branch begins. */
  public enum Start {
    /** Begins at the oldest message that is still held. */
    EARLIEST,
    /** Begins at the next message to be published. */
    LATEST,
    /** Begins at the first message at or after a sequence. */
    SEQUENCE
  }

  public static final BranchOptions EARLIEST =
      new BranchOptions(Start.EARLIEST, 0, false, false, false);
  public static final BranchOptions LATEST =
      new BranchOptions(Start.LATEST, 0, false, false, false);

  public static BranchOptions at(long sequence) {
    return new BranchOptions(Start.SEQUENCE, sequence, false, false, false);
  }

  public BranchOptions asExclusive() {
    return new BranchOptions(start, sequence, true, ephemeral, dropOldest);
  }

  public BranchOptions asEphemeral() {
    return new BranchOptions(start, sequence, exclusive, true, dropOldest);
  }

  public BranchOptions asDropOldest() {
    return new BranchOptions(start, sequence, exclusive, ephemeral, true);
  }

  int flags() {
    return (exclusive ? 1 : 0) | (ephemeral ? 2 : 0) | (dropOldest ? 4 : 0);
  }
}
