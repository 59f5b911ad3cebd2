package io.shmring.sidecar;

import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;

/** Sends a task's batches to whoever answers them. One thread at a time may use it. */
public interface Client {
  default void endInput() {}

  /** Number of batches that are still needed. */
  int underWay();

  /**
   * Whether a further batch is to be sent before the oldest is answered.
   *
   * @param most under way, unless they are small
   */
  default boolean wantsMore(int most) {
    return underWay() < most;
  }

  /** Whether {@link #next} returns without a wait. */
  boolean isAnswered() throws InterruptedException;

  /**
   * Returns the next piece of an answer, or empty where the oldest batch is no longer needed, or
   * all is {@linkplain #isOver over}. Close each piece before the next call.
   */
  Optional<Answer> next() throws InterruptedException;

  /** Whether nothing more comes; asked after the last batch. */
  boolean isOver();

  /** Number of batches that are best sent as one. */
  default int batchesWanted() {
    return 1;
  }

  /** The functions, for the text of an error. */
  String function();

  /**
   * A batch of a sidecar's answer. It lies in the reply ring, so close it before asking for the
   * next one.
   */
  public interface Answer extends AutoCloseable {
    /** The batch's columns, which stay valid until this is closed. */
    VectorSchemaRoot batch();

    /** The rows of each of the function's batches that are put together in this one. */
    default int[] rows() {
      return new int[] {batch().getRowCount()};
    }

    @Override
    void close();
  }

  /**
   * Where a client counts for its task: "requests", "requestBytes", "answers", "answerBytes", and
   * "retries", which are requests sent again because a worker had died or the sidecar was restarted; the
   * nanoseconds that it waited, "roomTime" and "answerTime", and that the sidecar worked, "workedTime".
   */
  public interface Counters {
    void add(String name, long more);
  }

  /**
   * The timeouts of a client, in seconds as the user gave them.
   *
   * @param timeout for any answer of a living sidecar, also if its workers are still loading or it
   *     has no room for another client
   * @param connectTimeout for a sidecar that does not run (yet, or any more)
   */
  public record Timeouts(double timeout, double connectTimeout) {
    static long nanos(double seconds) {
      return (long) Math.min(seconds * 1e9, Long.MAX_VALUE / 4);
    }

    static String text(double seconds) {
      return seconds == Math.rint(seconds)
          ? Long.toString((long) seconds)
          : Double.toString(seconds);
    }
  }

  /** The task of an application that sends a request; the request carries it. */
  public record Work(String application, int stage, int partition, long attempt) {
    static final Work NOBODYS = new Work("", 0, 0, 0);
  }
}
