package io.shmring;

/** Results of the C library that are not errors. The names are those of shmring.h. */
final class Outcome {
  /** The ring is full (for a producer), or the branch is empty (for a consumer). */
  static final int UNAVAILABLE = -1;

  /** Another process was faster: the caller tries again. */
  static final int CONTENDED = -2;

  static final int TIMEOUT = -4;

  /** The branch lost its oldest messages because it has dropOldest. */
  static final int OVERRUN = -5;

  /** The branch has reached an end marker. */
  static final int ENDED = -6;

  private Outcome() {}
}
