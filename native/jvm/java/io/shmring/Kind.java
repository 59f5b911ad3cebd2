package io.shmring;

/** What a message holds. */
public final class Kind {
  /** Bytes. */
  public static final int BYTES = 0;

  /** The end marker: readers that iterate stop there. */
  public static final int END = 2;

  /** One Arrow IPC record batch message, whose schema stands in the ring's header. */
  public static final int ARROW_BATCH = 3;

  /** A whole Arrow IPC stream: schema, dictionaries, one batch. */
  public static final int ARROW_STREAM = 4;

  private Kind() {}
}
