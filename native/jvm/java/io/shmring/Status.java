package io.shmring;

/** The kind of error of a {@link RingException}. The names are those of the C library. */
public enum Status {
  // CHANGE: edit this for a new error
  INVALID(-10),
  NOT_FOUND(-11),
  EXISTS(-12),
  NOT_A_RING(-13),
  VERSION(-14),
  DAMAGED(-15),
  PERMISSION(-16),
  NO_SPACE(-17),
  TOO_LARGE(-18),
  SECOND_PRODUCER(-19),
  SECOND_CONSUMER(-20),
  LIMIT(-21),
  LEASES(-22),
  CLAIM_OPEN(-23),
  NO_BRANCH(-24),
  DROPPED(-25),
  CLOSED(-26),
  FORKED(-27),
  SYSTEM(-28),
  NO_MEMORY(-29),
  /** Another process was busy with the ring for too long: try again. */
  CONTENDED(Outcome.CONTENDED),
  /** The branch lost messages; see {@link OverrunException}. */
  OVERRUN(Outcome.OVERRUN);

  private final int code;

  Status(int code) {
    this.code = code;
  }

  static Status of(int code) {
    for (Status status : values()) {
      if (status.code == code) {
        return status;
      }
    }
    return SYSTEM;
  }
}
