package io.shmring;

/** What became of a sequence that a claim began with. */
public enum Fate {
  /** A message begins there. */
  PUBLISHED,
  /** It was not published, and will not be unless its producer lives. */
  NOT_PUBLISHED,
  /** Its slot may have been used again since. */
  UNKNOWN
}
