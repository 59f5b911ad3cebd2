package io.shmring;

/**
 * The kind of a message. Below {@link #USER} only the numbers listed here may be published, and
 * only for messages that have the named format; any other call throws a RingException.
 */
public final class Kind {
  /** A message of plain bytes. */
  public static final int BYTES = 0;

  /** The end marker, which ends the stream for every consumer of every branch. */
  public static final int END = 2;

  /** One Arrow IPC record batch message; its schema is in the ring's header. */
  public static final int ARROW_BATCH = 3;

  /** A whole Arrow IPC stream: schema, dictionaries (if any) and one batch. */
  public static final int ARROW_STREAM = 4;

  /** The first kind that users of a ring may define; the last one is 255. */
  public static final int USER = 16;

  private Kind() {}
}
