package io.shmring;

/**
 * Thrown when a branch with dropOldest fell behind and lost messages; the next take continues after
 * the lost messages.
 */
public final class OverrunException extends RingException {
  private final long first;
  private final long end;

  OverrunException(String ring, long first, long end) {
    super(
        Status.OVERRUN,
        String.format(
            "ring \"%s\": the branch fell too far behind and lost the sequences %d to %d",
            ring, first, end - 1));
    this.first = first;
    this.end = end;
  }

  /** Returns the first lost sequence. */
  public long first() {
    return first;
  }

  /** Returns the sequence after the last lost sequence. */
  public long end() {
    return end;
  }
}
