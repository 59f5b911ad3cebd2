package io.shmring;

/**
 * The kind of a message. Of the numbers below {@link #USER} only these may be published, and only for
 * messages that are what the kind says: else the call throws a RingException.
 */
public final class Kind {
  /** Bytes. */
  public static final int BYTES = 0;

  /** The end marker: it ends the stream for every consumer of every branch. */
  public static final int END = 2;

  /** One Arrow IPC record batch message, whose schema is in the ring's header. */
  public static final int ARROW_BATCH = 3;

  /** A whole Arrow IPC stream: schema, dictionaries, one batch. */
  public static final int ARROW_STREAM = 4;

  /** The first of the numbers for the ring's users, which end with 255. */
  public static final int USER = 16;

  private Kind() {}
}
