package io.shmring.exchange;

import io.shmring.Kind;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.AnswerDecoder;
import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client.Answer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.ObjLongConsumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Sends batches to one of Spark's Python workers and takes its answers. A function may give any
 * number of answers for a batch, so the client cannot tell which answer belongs to which batch.
 * docs/spark-design.md shows when the client waits for the worker, and when the worker waits for
 * the client. spark/exchange.py is the worker's end.
 */
public final class WorkerClient implements Client {
  /** The worker's socket. The worker sends everything on it except its batches. */
  public interface Control {
    /** Returns whether the worker has sent bytes or closed the socket. Does not wait. */
    boolean isHeard();

    /**
     * Reads the rest of the socket after the worker has ended, and throws the worker's error, if it
     * sent one. Call this once.
     */
    void end();

    /**
     * Reacts to the worker's silence. The client calls this method again and again while it waits
     * and the worker sends no message.
     *
     * @param nanos nanoseconds since the worker's last message, or since the wait for it began
     */
    void isSilent(long nanos);
  }

  // Longest single wait for the worker; between two waits the client checks the socket and the
  // task.
  private static final Duration SLICE = Duration.ofMillis(20);
  // Longest single wait while a request waits for room: the worker does not wake the client when it
  // makes room.
  private static final Duration SHORT = Duration.ofMillis(1);

  // Maximum number of requests under way while they have less than SMALL_BYTES together. Spark's
  // own writer, too, collects 64 KB (SMALL_BYTES) in a buffer before it sends them.
  private static final int MOST_SMALL = 64;
  // Maximum number of large requests under way: the one on which the worker works, and the next
  // one.
  private static final int FEW = 2;
  private static final long SMALL_BYTES = 1 << 16;

  // CHANGE: edit this for a new field of a worker's message
  private static final int HEAD_BYTES = 64;
  // Names of the counters of the times in an answer's head, in the head's order.
  private static final List<String> TIMES = List.of("workedTime", "inputTime", "roomTime");
  private static final int MOST_BYTES = Integer.MAX_VALUE - 8; // maximum bytes of a Java array
  private static final int KIND = Kind.USER; // kind of the requests' messages
  // The flags of a message's head.
  private static final int END = 1; // the last message: no more requests, or answers, follow
  private static final int BATCH = 2; // the message has a batch
  // The answer refers to columns of the request that the function works on.
  private static final int REFERS = 4;
  private static final int PART = 8; // the message has a part of a batch, whose other parts follow
  // The last group of the batch continues in the next request.
  private static final int GOES_ON = 16;
  private static final int RIGHT = 32; // the batch belongs to the second side of a cogroup

  // CHANGE: edit this for a new field of a worker's message
  /**
   * The first fields of a message, before the row counts and the batch. {@link #report} reads the
   * last fields of an answer's head; they are 0 in a request.
   *
   * @param stream number of the client: tells its messages from messages of earlier tasks, which
   *     stay in the rings if they were not read
   * @param number in a request, its number; in an answer, the number of requests that the worker no
   *     longer needs
   * @param total size in bytes of a batch that is sent in parts
   * @param together number of groups in a request, or of the function's batches in an answer; their
   *     row counts follow the head
   */
  private record WorkerHead(long stream, long number, long total, int flags, int together) {
    /** Returns the bytes of a request's head, followed by the row count of each group. */
    static byte[] pack(long stream, long number, long total, int flags, int[] rows) {
      ByteBuffer bytes = ByteBuffer.allocate(bytes(rows.length)).order(ByteOrder.LITTLE_ENDIAN);
      bytes.putLong(stream).putLong(number).putLong(total).putInt(flags).putInt(rows.length);
      bytes.position(HEAD_BYTES).slice().order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().put(rows);
      return bytes.array();
    }

    /**
     * Reads the first fields of an answer's head. The next field to read in `bytes` is then the
     * first one of the worker's report.
     *
     * @param length bytes of the whole message
     */
    static WorkerHead of(ByteBuffer bytes, long length) {
      WorkerHead head =
          new WorkerHead(
              bytes.getLong(), bytes.getLong(), bytes.getLong(), bytes.getInt(), bytes.getInt());
      if (head.together < 0 || head.together > (length - HEAD_BYTES) / Integer.BYTES) {
        throw damaged(head.together + " batches in " + length + " bytes");
      }
      return head;
    }

    /** Returns the offset of the batch in a message with `together` row counts: a multiple of 8. */
    static int bytes(int together) {
      return HEAD_BYTES + (together + 1) / 2 * 2 * Integer.BYTES;
    }

    int[] rows(Message message) {
      int[] rows = new int[together];
      ByteBuffer bytes =
          ByteBuffer.allocate(together * Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN);
      message.copyTo(HEAD_BYTES, bytes);
      bytes.flip().asIntBuffer().get(rows);
      return rows;
    }

    boolean has(int flag) {
      return (flags & flag) != 0;
    }
  }

  private final WorkerRings rings;
  private final long stream;
  private final Control control;
  private final Runnable taskCheck;
  private final ObjLongConsumer<String> counts;
  private final AnswerDecoder decoder;
  // Requests that the worker still needs, oldest first. The worker's answers may refer to them.
  private final ArrayDeque<Rows> waiting = new ArrayDeque<>();
  // The last requests of `waiting`, which are not sent completely.
  private final ArrayDeque<Rows> unsent = new ArrayDeque<>();
  private long sent; // bytes sent of the first unsent request, which may go in parts
  private long bytesUnderWay;
  private long number; // number of the next request
  private long unneeded; // number of requests that the worker no longer needs
  // CHANGE: edit this for a new field of a worker's message
  // The last totals that the worker has reported: TIMES, and the batches that Spark converted.
  private final long[] reported = new long[TIMES.size() + 1];
  private Optional<Answer> received = Optional.empty(); // the answer that is given out next
  private Optional<ByteBuffer> parts = Optional.empty(); // a batch whose last part has not come
  private boolean inputEnds;
  private boolean inputEnded; // whether the worker was told that the input has ended
  private boolean ended; // whether the worker has sent its last message
  private boolean over; // whether the worker has ended and its socket was read
  private boolean interrupted; // whether the thread was interrupted while it waited

  /**
   * @param stream a number that no other client of these rings has
   * @param taskCheck a check that throws if the caller may not wait any longer
   * @param check a check that is called with the schema of an answer, at least whenever the schema
   *     has changed since the last answer
   */
  public WorkerClient(
      WorkerRings rings,
      long stream,
      Control control,
      Runnable taskCheck,
      ObjLongConsumer<String> counts,
      BufferAllocator allocator,
      Consumer<Schema> check) {
    this.rings = rings;
    this.stream = stream;
    this.control = control;
    this.taskCheck = taskCheck;
    this.counts = counts;
    this.decoder =
        new AnswerDecoder(allocator, check, bytes -> counts.accept("passedOnBytes", bytes));
  }

  /**
   * {@inheritDoc} The call does not wait for room, because the worker may be waiting for room for
   * its answers.
   */
  @Override
  public void send(Rows rows) {
    number++;
    waiting.add(rows);
    unsent.add(rows);
    bytesUnderWay += rows.batch().length();
    counts.accept("requests", 1);
    counts.accept("requestBytes", HEAD_BYTES + rows.batch().length());
    push();
  }

  /**
   * Sends the unsent requests, and after the last request of the task a message that says so (flag
   * END). Returns false if something remains to be sent: there was no room in the ring, or the
   * thread was interrupted. Sends nothing to a worker that has ended its answers.
   */
  private boolean push() {
    try {
      while (!ended && !unsent.isEmpty()) {
        Rows rows = unsent.element();
        EncodedBatch batch = rows.batch();
        long all = batch.length();
        int[] groups = rows.groups();
        long count = Math.min(all - sent, rings.mostBytes() - WorkerHead.bytes(groups.length));
        boolean isLast = sent + count == all;
        int flags =
            BATCH
                | (rows.goesOn() ? GOES_ON : 0)
                | (rows.side() == 1 ? RIGHT : 0)
                | (isLast ? 0 : PART);
        byte[] head = WorkerHead.pack(stream, number - unsent.size(), all, flags, groups);
        if (batch.push(rings.producer, head, sent, count, KIND, Duration.ZERO).isEmpty()) {
          return false;
        }
        sent = isLast ? 0 : sent + count;
        if (isLast) {
          unsent.remove();
        }
      }
      if (inputEnds && !inputEnded && !ended) {
        byte[] end = WorkerHead.pack(stream, number, 0, END, new int[0]);
        inputEnded = rings.producer.push(end, Duration.ZERO).isPresent();
        return inputEnded;
      }
      return true;
    } catch (InterruptedException error) {
      interrupted = true;
      return false;
    }
  }

  @Override
  public void endInput() {
    inputEnds = true;
  }

  @Override
  public int underWay() {
    return waiting.size();
  }

  @Override
  public boolean wantsMore(int most) {
    int count = waiting.size();
    return bytesUnderWay < SMALL_BYTES && count < MOST_SMALL
        || count < (bytesUnderWay < 2 * rings.mostBytes() ? most : Math.min(most, FEW));
  }

  @Override
  public boolean isOver() {
    return over && waiting.isEmpty();
  }

  // --- answers --------------------------------------------------------------------------------

  @Override
  public boolean isAnswered() {
    return take(Duration.ZERO) && (received.isPresent() || ended) || isUnneeded();
  }

  /**
   * {@inheritDoc} An interrupt does not end the wait. If a task is killed and its function does not
   * return, Spark's monitor ends the worker, which ends the wait. The monitor ends workers only of
   * tasks that have not completed, so the task has to go on waiting.
   */
  @Override
  public Optional<Answer> next() {
    long heard = System.nanoTime(); // when the worker sent its last message, or the wait began
    try {
      while (true) {
        if (isUnneeded()) {
          Rows oldest = waiting.remove();
          bytesUnderWay -= oldest.batch().length();
          oldest.close();
          return Optional.empty();
        }
        if (received.isPresent()) {
          Optional<Answer> given = received;
          received = Optional.empty();
          return given;
        }
        if (ended && !over) {
          end();
        }
        if (over) {
          unsent.clear();
          unneeded = number;
          if (waiting.isEmpty()) {
            return Optional.empty();
          }
          continue;
        }
        if (take(push() ? SLICE : SHORT)) {
          heard = System.nanoTime();
        } else {
          look(System.nanoTime() - heard);
        }
      }
    } finally {
      if (interrupted) {
        interrupted = false;
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Returns whether neither the worker nor a received batch needs the oldest request. */
  private boolean isUnneeded() {
    return oldest() < unneeded;
  }

  /**
   * Returns the number of the oldest request in `waiting`, or the number of the next request if
   * `waiting` is empty.
   */
  private long oldest() {
    return number - waiting.size();
  }

  /**
   * Waits for a message from the worker, and handles it. Returns false if no message came in time,
   * or if the thread was interrupted. Returns true at once, without a new message, if next() still
   * has to return an earlier answer, or if the worker has sent its last message.
   */
  private boolean take(Duration wait) {
    if (received.isPresent() || ended) {
      return true;
    }
    Optional<Lease> taken = Optional.empty();
    long begun = System.nanoTime();
    try {
      taken = rings.consumer.poll(wait);
    } catch (InterruptedException error) {
      interrupted = true;
    }
    counts.accept("answerTime", System.nanoTime() - begun);
    if (taken.isEmpty()) {
      return false;
    }
    boolean kept = false;
    try {
      kept = accept(taken.get());
    } finally {
      if (!kept) {
        taken.get().close();
      }
    }
    return true;
  }

  /**
   * Handles a message from the worker. Returns whether the lease must stay open, because the
   * message has a whole batch, whose vectors read the message in place.
   */
  private boolean accept(Lease lease) {
    Message message = lease.message();
    if (message.length() < HEAD_BYTES) {
      throw damaged("a message of " + message.length() + " bytes is no answer");
    }
    ByteBuffer bytes = ByteBuffer.allocate(HEAD_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    message.copyTo(0, bytes);
    WorkerHead head = WorkerHead.of(bytes.flip(), message.length());
    if (head.stream != stream) { // a message for an earlier task that gave up
      return false;
    }
    if (head.number > number) {
      throw damaged(
          String.format("%d of %d requests are no longer needed", head.number, number));
    }
    // Take the maximum: when a function has several threads, one thread may send a smaller number
    // after another thread has sent a larger one.
    unneeded = Math.max(unneeded, head.number);
    report(bytes);
    ended |= head.has(END);
    if (!head.has(BATCH)) {
      return false;
    }
    counts.accept("answers", 1);
    counts.accept("answerBytes", message.length());
    if (!head.has(PART) && parts.isEmpty()) {
      int begin = WorkerHead.bytes(head.together);
      VectorSchemaRoot batch = decoder.decode(message, begin, sent(head), true);
      received = Optional.of(answer(batch, head, message, lease::close));
      return true;
    }
    ByteBuffer whole = collect(head, message);
    if (!head.has(PART)) {
      parts = Optional.empty();
      if (whole.hasRemaining()) {
        throw damaged("an answer in parts lacks " + whole.remaining() + " bytes");
      }
      if (head.together != 0) {
        throw damaged("row counts of several batches in an answer in parts");
      }
      VectorSchemaRoot batch = decoder.read(whole.array(), sent(head));
      received = Optional.of(answer(batch, head, message, () -> {}));
    }
    return false;
  }

  /** Returns the columns of the request to which an answer refers; none if it refers to none. */
  private VectorSchemaRoot sent(WorkerHead head) {
    if (!head.has(REFERS)) {
      return VectorSchemaRoot.of();
    }
    // The worker has said that it needs this request, and no older one. next() has not yet returned
    // the older ones as done, so they may still be in `waiting`.
    if (head.number != unneeded || head.number == number) {
      throw damaged("an answer refers to a request that is not under way");
    }
    Rows request = waiting.stream().skip(head.number - oldest()).findFirst().orElseThrow();
    return request.batch().columns();
  }

  /**
   * Returns the answer of a decoded batch; closes the batch if the row counts in the head are not
   * those of the batch.
   *
   * @param release an action that gives back the message's memory after the batch was closed
   */
  private static Answer answer(
      VectorSchemaRoot batch, WorkerHead head, Message message, Runnable release) {
    int all = batch.getRowCount();
    int[] rows = head.together == 0 ? new int[] {all} : head.rows(message);
    if (Arrays.stream(rows).anyMatch(each -> each < 0)
        || Arrays.stream(rows).asLongStream().sum() != all) {
      batch.close();
      throw damaged("its batches do not have " + all + " rows together");
    }
    return new Answer(
        batch,
        rows,
        () -> {
          batch.close();
          release.run();
        });
  }

  // CHANGE: edit this for a new field of a worker's message
  /**
   * Counts the worker's times, and the batches that Spark's own code has converted, since its last
   * report.
   */
  private void report(ByteBuffer bytes) {
    for (int i = 0; i < TIMES.size(); i++) {
      counts.accept(TIMES.get(i), gained(i, bytes.getLong()));
    }
    long converted = gained(TIMES.size(), bytes.getInt());
    int reason = bytes.getInt();
    if (converted > 0) {
      counts.accept("convertedBySpark" + reason, converted);
    }
  }

  /**
   * Returns by how much a total of the worker's report has grown; 0 if it is smaller than the last
   * one. A smaller total means nothing: a message without a report has zeros, and when a function
   * has several threads, an older report may come after a newer one.
   *
   * @param place index of the total in `reported`
   */
  private long gained(int place, long now) {
    long before = reported[place];
    reported[place] = Math.max(before, now);
    return reported[place] - before;
  }

  /** Copies a part of a batch behind its earlier parts. */
  private ByteBuffer collect(WorkerHead head, Message message) {
    long bytes = message.length() - HEAD_BYTES;
    if (parts.isEmpty()) {
      if (head.total < bytes || head.total > MOST_BYTES) {
        throw new RingException(
            Status.TOO_LARGE, "a row of an answer has %d bytes: Spark takes 2 GB at most",
            head.total);
      }
      parts = Optional.of(ByteBuffer.allocate((int) head.total));
    }
    ByteBuffer whole = parts.get();
    if (bytes > whole.remaining()) {
      throw damaged("an answer in parts has more bytes than it began with");
    }
    int end = (int) (whole.position() + bytes);
    message.copyTo(HEAD_BYTES, whole.duplicate().limit(end));
    return whole.position(end);
  }

  // --- is the worker alive? ----------------------------------------------------------------------

  /**
   * Checks, after a wait without a message, whether the task or the worker has ended.
   *
   * @param silent nanoseconds since the worker's last message, or since the wait for it began
   */
  private void look(long silent) {
    taskCheck.run();
    // If the worker has used its socket, the worker is about to end. First take its last messages
    // from the ring, then let end() read the socket and throw the worker's error.
    if (control.isHeard() && !take(Duration.ZERO)) {
      end();
      throw damaged("it has ended without a last one");
    }
    control.isSilent(silent);
  }

  /** Reads the rest of the ended worker's socket; throws the worker's error, if it sent one. */
  private void end() {
    over = true;
    control.end();
  }

  private static RingException damaged(String what) {
    return new RingException(
        Status.DAMAGED,
        "the answers of a Python worker: " + what + "; do driver and executors run the same shmring?");
  }

  /** Drops all requests and answers, and leaves the rings. Called when the task ends. */
  @Override
  public void close() {
    received.ifPresent(Answer::close);
    received = Optional.empty();
    waiting.forEach(Rows::close);
    waiting.clear();
    unsent.clear();
    rings.leave();
  }
}
