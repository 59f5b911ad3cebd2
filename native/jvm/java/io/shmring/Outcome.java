package io.shmring;

/** Answers of the C library that are not errors; the names are those of shmring.h. */
final class Outcome {
  /** Full, or empty. */
  static final int UNAVAILABLE = -1;

  /** Another process was faster: try again. */
  static final int CONTENDED = -2;

  static final int TIMEOUT = -4;

  /** The branch lost messages. */
  static final int OVERRUN = -5;

  /** The stream has ended. */
  static final int ENDED = -6;

  private Outcome() {}
}
