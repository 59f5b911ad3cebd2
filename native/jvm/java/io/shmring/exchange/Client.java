package io.shmring.exchange;

import io.shmring.arrow.EncodedBatch;
import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;

// CHANGE: edit this for a new metric
/**
 * Sends a task's batches to the process that answers them. One thread at a time may use a client.
 *
 * <p>A client counts its work for its task, under these names:
 *
 * <ul>
 *   <li>"requests" and "requestBytes": requests, and the bytes of their messages;
 *   <li>"answers" and "answerBytes": messages with answers, and their bytes;
 *   <li>"passedOnBytes": bytes of columns that answers leave out;
 *   <li>"retries": requests sent again because a worker had died or the sidecar was restarted;
 *   <li>"convertedBySpark1" and so on, one name for each reason: batches that a Python worker let
 *       Spark's code convert, because shmring had no conversion for them;
 *   <li>"answerTime": nanoseconds that the client waited for answers;
 *   <li>"roomTime": nanoseconds of waiting for room in a ring, for requests to a sidecar or for
 *       answers of a Python worker;
 *   <li>"workedTime": nanoseconds that the function's process worked;
 *   <li>"inputTime": nanoseconds that a Python worker waited for input.
 * </ul>
 */
public interface Client extends AutoCloseable {
  /**
   * Sends rows. All answers that were returned before must be closed. A client of a sidecar waits
   * for room; any other client sends the rows as soon as there is room.
   */
  void send(Rows rows) throws InterruptedException;

  /** Says that no further rows are sent. */
  default void endInput() {}

  /** Returns the number of batches that were given to send() and whose answers may still come. */
  int underWay();

  /**
   * Returns whether a further batch should be sent before the oldest one is answered.
   *
   * @param most maximum number of batches under way; a client may allow more small batches
   */
  default boolean wantsMore(int most) {
    return underWay() < most;
  }

  /** Returns whether {@link #next} would return without a wait. */
  boolean isAnswered() throws InterruptedException;

  /**
   * Returns the next piece of an answer. Returns empty if the oldest batch is no longer needed, or
   * if all work is {@linkplain #isOver over}. Close each piece before the next call.
   */
  Optional<Answer> next() throws InterruptedException;

  /** Returns whether no further answer can come. */
  boolean isOver();

  /** Returns the number of batches that the answering process wants sent as one request. */
  default int batchesWanted() {
    return 1;
  }

  /** Returns the names of the functions that answer, for the text of an error. */
  default String function() {
    return "a Python worker";
  }

  @Override
  void close();

  /**
   * Rows on their way to a task's functions.
   *
   * @param batch the rows; the client closes the batch when nobody needs it any longer
   * @param atATime number of rows that the function gets as one batch; 0 for all rows
   * @param side the side of a cogroup: 0 or 1
   * @param groups number of rows of each group in the batch, for a Python worker; empty if the rows
   *     are not grouped
   * @param goesOn whether more rows of the batch's last group follow in the next batch
   * @param answered an action that runs after the batch was closed
   */
  public record Rows(
      EncodedBatch batch,
      int atATime,
      int side,
      int[] groups,
      boolean goesOn,
      Runnable answered) {
    /** Closes the batch, which nobody needs any longer. */
    public void close() {
      batch.close();
      answered.run();
    }
  }

  /**
   * A batch of an answer. The batch lies in the ring of answers, so close it before you ask for the
   * next batch.
   *
   * @param batch the columns, which stay valid until the answer is closed
   * @param rows row counts of the function's own batches, which were joined to this one batch
   * @param release an action that gives the batch's memory back
   */
  public record Answer(VectorSchemaRoot batch, int[] rows, Runnable release) {
    public Answer(VectorSchemaRoot batch, Runnable release) {
      this(batch, new int[] {batch.getRowCount()}, release);
    }

    public void close() {
      release.run();
    }
  }

  // CHANGE: edit this for a new option of a client
  /**
   * The timeouts of a client, in seconds as the user gave them.
   *
   * @param timeout the longest wait for any answer of a living sidecar, also while its workers
   *     still load or while it has no room for another client
   * @param connectTimeout the longest wait for a sidecar that does not run yet, or no longer runs
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

  // CHANGE: edit this for a new field of a request
  /** Identifies the task that sends a request; each request carries this record. */
  public record Work(String application, int stage, int partition, long attempt) {
    static final Work NOBODYS = new Work("", 0, 0, 0);
  }
}
