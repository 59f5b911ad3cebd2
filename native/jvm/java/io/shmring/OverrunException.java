package io.shmring;

/** A branch with dropOldest fell behind and lost messages; the next take continues after them. */
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

  /** The first sequence that was lost. */
  public long first() {
    return first;
  }

  /** The sequence behind the last one that was lost. */
  public long end() {
    return end;
  }
}
