package io.shmring;

/**
 * What a message holds. Of the numbers below {@link #USER} these may be published, and only by what
 * they name; another one, or bytes that are no Arrow message as one, is a RingException.
 */
public final class Kind {
  /** Bytes. */
  public static final int BYTES = 0;

  /** The end marker: it ends the stream for every consumer of every branch. */
  public static final int END = 2;

  /** One Arrow IPC record batch message, whose schema stands in the ring's header. */
  public static final int ARROW_BATCH = 3;

  /** A whole Arrow IPC stream: schema, dictionaries, one batch. */
  public static final int ARROW_STREAM = 4;

  /** From here to 255 the numbers are the ring's users'. */
  public static final int USER = 16;

  private Kind() {}
}
