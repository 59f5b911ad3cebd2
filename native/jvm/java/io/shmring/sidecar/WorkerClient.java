package io.shmring.sidecar;

import io.shmring.Kind;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.AnswerDecoder;
import io.shmring.arrow.EncodedBatch;
import io.shmring.sidecar.Client.Answer;
import io.shmring.sidecar.Client.Counters;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Sends batches to a Python worker of Spark's, and takes what its function makes of all of them:
 * which answer belongs to which batch only the function knows. docs/spark-design.md draws who waits
 * for whom; spark/exchange.py is the other end.
 */
public final class WorkerClient implements PythonClient {
  /** The worker's socket, on which it says all but its batches. */
  public interface Control {
    /** Whether it has said something, or has gone; does not wait. */
    boolean isHeard();

    /** Reads what it says when it has ended; raises its error. To be called once. */
    void end();
  }

  // A wait is cut into slices of this length, to look at the socket and the task.
  private static final Duration SLICE = Duration.ofMillis(20);
  // The same while a request waits for room: the worker says nothing when it makes some.
  private static final Duration SHORT = Duration.ofMillis(1);

  // So many requests may be under way while they have few bytes: Spark's own fill buffers of 64 KB.
  private static final int MOST_SMALL = 64;
  private static final int FEW = 2; // large ones: one to work on, one behind it
  private static final long SMALL_BYTES = 1 << 16;

  private static final int HEAD_BYTES = 32;
  private static final int MOST_BYTES = Integer.MAX_VALUE - 8; // of an array
  private static final byte[] NONE = {};
  private static final int[] NO_GROUPS = {};
  // Flags of a message.
  private static final int END = 1; // no more requests, or answers, come
  private static final int BATCH = 2; // it has one
  private static final int REFERS = 4; // to columns of the request that is at hand
  private static final int PART = 8; // of a batch, whose other parts follow
  private static final int GOES_ON = 16; // the frame of the batch does
  private static final int RIGHT = 32; // it is of a cogroup's second frame

  /**
   * What stands before a batch.
   *
   * @param stream whose it is: requests that a worker has left unread stay in the ring
   * @param number in an answer, how many requests the worker needs no longer
   * @param total bytes of a batch in parts
   * @param together number of groups in a request, or of the function's batches in an answer; the
   *     rows of each follow
   */
  private record Head(long stream, long number, long total, int flags, int together) {
    /** Returns the head of a message, and the rows of each group or batch in it. */
    byte[] pack(int[] rows) {
      ByteBuffer bytes = ByteBuffer.allocate(bytes()).order(ByteOrder.LITTLE_ENDIAN);
      bytes.putLong(stream).putLong(number).putLong(total).putInt(flags).putInt(together);
      bytes.slice().order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().put(rows);
      return bytes.array();
    }

    static Head of(Message message) {
      if (message.length() < HEAD_BYTES) {
        throw damaged("a message of " + message.length() + " bytes is no answer");
      }
      ByteBuffer bytes = ByteBuffer.allocate(HEAD_BYTES).order(ByteOrder.LITTLE_ENDIAN);
      message.copyTo(0, bytes);
      bytes.flip();
      Head head =
          new Head(
              bytes.getLong(), bytes.getLong(), bytes.getLong(), bytes.getInt(), bytes.getInt());
      if (head.together < 0 || head.together > (message.length() - HEAD_BYTES) / Integer.BYTES) {
        throw damaged(head.together + " batches in " + message.length() + " bytes");
      }
      return head;
    }

    /** Where the batch begins: a multiple of 8. */
    int bytes() {
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

  /** A batch that the worker may still refer to. */
  private record Request(
      long number, EncodedBatch batch, int flags, int[] groups, Runnable answered) {
    void close() {
      batch.close();
      answered.run();
    }
  }

  /** A batch of an answer: where it lies, or put together from its parts. */
  private record Piece(Head head, Optional<Lease> lease, byte[] parts) {
    void release() {
      lease.ifPresent(Lease::close);
    }
  }

  private record Decoded(VectorSchemaRoot batch, int[] rows, Piece piece) implements Answer {
    @Override
    public void close() {
      batch.close();
      piece.release();
    }
  }

  private final WorkerRings rings;
  private final long stream;
  private final Control control;
  private final Runnable taskCheck;
  private final Counters counters;
  private final AnswerDecoder decoder;
  private final ArrayDeque<Request> waiting = new ArrayDeque<>(); // in order
  private final ArrayDeque<Request> unsent = new ArrayDeque<>(); // the last of these
  private long sent; // bytes of the first of them, which may go in parts
  private long bytesUnderWay;
  private long number;
  private long unneeded; // requests, as the worker has said
  private Optional<Piece> piece = Optional.empty(); // the oldest that was not given out
  private Optional<ByteBuffer> parts = Optional.empty(); // of one, without its end
  private boolean inputEnds;
  private boolean inputEnded; // and the worker knows
  private boolean ended; // by the worker
  private boolean over; // and its socket is read
  private boolean interrupted; // while it waited

  /**
   * @param stream a number that no other client of these rings has
   * @param taskCheck throws if the caller may wait no longer
   * @param check called with each schema of an answer that differs from the last one
   */
  public WorkerClient(
      WorkerRings rings,
      long stream,
      Control control,
      Runnable taskCheck,
      Counters counters,
      BufferAllocator allocator,
      Consumer<Schema> check) {
    this.rings = rings;
    this.stream = stream;
    this.control = control;
    this.taskCheck = taskCheck;
    this.counters = counters;
    this.decoder = new AnswerDecoder(allocator, check);
  }

  /** {@inheritDoc} It does not wait for room: the worker may be waiting for room for its answers. */
  @Override
  public void send(
      EncodedBatch batch, int side, int[] groups, boolean goesOn, Runnable answered) {
    int flags = BATCH | (goesOn ? GOES_ON : 0) | (side == 1 ? RIGHT : 0);
    Request request = new Request(number++, batch, flags, groups, answered);
    waiting.add(request);
    unsent.add(request);
    bytesUnderWay += batch.length();
    counters.add("requests", 1);
    counters.add("requestBytes", HEAD_BYTES + batch.length());
    push();
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

  @Override
  public boolean isAnswered() {
    return take(Duration.ZERO) && (piece.isPresent() || ended) || isUnneeded();
  }

  @Override
  public Optional<Answer> next() {
    try {
      return waited();
    } finally {
      if (interrupted) {
        interrupted = false;
        Thread.currentThread().interrupt();
      }
    }
  }

  /**
   * An interrupt does not end the wait: Spark's monitor ends a worker whose task was killed, if the
   * function does not end by itself, and it does so only while the task waits.
   */
  private Optional<Answer> waited() {
    long begun = System.nanoTime();
    while (true) {
      if (isUnneeded()) {
        Request oldest = waiting.remove();
        bytesUnderWay -= oldest.batch.length();
        oldest.close();
        return Optional.empty();
      }
      if (piece.isPresent()) {
        Piece given = piece.get();
        piece = Optional.empty();
        return Optional.of(decoded(given));
      }
      if (ended && !over) {
        over = true;
        control.end();
      }
      if (over) {
        unsent.clear();
        unneeded = number;
        if (waiting.isEmpty()) {
          return Optional.empty();
        }
        continue;
      }
      if (!take(push() ? SLICE : SHORT)) {
        look();
      }
      counters.add("answerTime", System.nanoTime() - begun);
      begun = System.nanoTime();
    }
  }

  /** Whether the worker needs the oldest request no longer, and neither does a piece. */
  private boolean isUnneeded() {
    return !waiting.isEmpty() && waiting.element().number < unneeded;
  }

  private Decoded decoded(Piece given) {
    boolean refers = given.head.has(REFERS);
    if (refers && (waiting.isEmpty() || waiting.element().number != given.head.number)) {
      given.release();
      throw damaged("an answer refers to a request that is not under way");
    }
    try {
      VectorSchemaRoot sent = refers ? waiting.element().batch.columns() : VectorSchemaRoot.of();
      VectorSchemaRoot batch =
          given.lease.isPresent()
              ? decoder.map(given.lease.get().message(), given.head.bytes(), sent)
              : decoder.read(given.parts, sent);
      return new Decoded(batch, rows(given, batch.getRowCount()), given);
    } catch (RuntimeException error) {
      given.release();
      throw error;
    }
  }

  private static int[] rows(Piece given, int all) {
    if (given.head.together == 0) {
      return new int[] {all};
    }
    int[] rows = given.head.rows(given.lease.orElseThrow().message());
    if (Arrays.stream(rows).anyMatch(each -> each < 0)
        || Arrays.stream(rows).asLongStream().sum() != all) {
      throw damaged("its batches do not have " + all + " rows together");
    }
    return rows;
  }

  // --- rings ----------------------------------------------------------------------------------

  /** Sends what there is room for; returns whether that is all. */
  private boolean push() {
    while (!ended && !unsent.isEmpty()) {
      if (!push(unsent.element())) {
        return false;
      }
      unsent.remove();
    }
    if (inputEnds && !inputEnded && !ended) {
      inputEnded = push(new Head(stream, number, 0, END, 0).pack(NO_GROUPS));
      return inputEnded;
    }
    return true;
  }

  private boolean push(Request request) {
    EncodedBatch batch = request.batch;
    int groups = request.groups.length;
    while (sent < batch.length()) {
      Head last = new Head(stream, request.number, batch.length(), request.flags, groups);
      long count = Math.min(batch.length() - sent, rings.mostBytes() - last.bytes());
      Head part = new Head(stream, request.number, batch.length(), request.flags | PART, groups);
      byte[] head = (sent + count < batch.length() ? part : last).pack(request.groups);
      try {
        if (batch.push(rings.producer, head, sent, count, Kind.USER, Duration.ZERO).isEmpty()) {
          return false;
        }
      } catch (InterruptedException error) {
        interrupted = true;
        return false;
      }
      sent += count;
    }
    sent = 0;
    return true;
  }

  private boolean push(byte[] message) {
    try {
      return rings.producer.push(message, Duration.ZERO).isPresent();
    } catch (InterruptedException error) {
      interrupted = true;
      return false;
    }
  }

  /** Takes a message, unless what came is not given out yet; returns whether there is anything. */
  private boolean take(Duration wait) {
    if (piece.isPresent() || ended) {
      return true;
    }
    Optional<Lease> taken = Optional.empty();
    try {
      taken = rings.consumer.poll(wait);
    } catch (InterruptedException error) {
      interrupted = true;
    }
    if (taken.isEmpty()) {
      return false;
    }
    Lease lease = taken.get();
    try {
      if (!accept(lease)) {
        lease.close();
      }
    } catch (RuntimeException error) {
      lease.close();
      throw error;
    }
    return true;
  }

  /** Returns whether the lease is needed until the piece is given back. */
  private boolean accept(Lease lease) {
    Message message = lease.message();
    Head head = Head.of(message);
    if (head.stream != stream) { // of a task that was given up
      return false;
    }
    if (head.number > number) {
      throw damaged(
          String.format("%d of %d requests are no longer needed", head.number, number));
    }
    // One of a function's threads may have read on before what another one says is in the ring.
    unneeded = Math.max(unneeded, head.number);
    ended |= head.has(END);
    if (!head.has(BATCH)) {
      return false;
    }
    counters.add("answers", 1);
    counters.add("answerBytes", message.length());
    if (!head.has(PART) && parts.isEmpty()) {
      piece = Optional.of(new Piece(head, Optional.of(lease), NONE));
      return true;
    }
    ByteBuffer whole = collect(head, message);
    if (!head.has(PART)) {
      parts = Optional.empty();
      if (whole.hasRemaining()) {
        throw damaged("an answer in parts lacks " + whole.remaining() + " bytes");
      }
      piece = Optional.of(new Piece(head, Optional.empty(), whole.array()));
    }
    return false;
  }

  /** Puts a part behind those before it. */
  private ByteBuffer collect(Head head, Message message) {
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

  // --- is anybody there? ----------------------------------------------------------------------

  /** Nothing came in time: the task may have ended, or the worker. */
  private void look() {
    taskCheck.run();
    // What it said last in the ring comes first; then it says on the socket why it has ended.
    if (control.isHeard() && !take(Duration.ZERO)) {
      over = true;
      control.end();
      throw damaged("it has ended without a last one");
    }
  }

  private static RingException damaged(String what) {
    return new RingException(
        Status.DAMAGED,
        "the answers of a Python worker: " + what + "; do driver and executors run the same shmring?");
  }

  /** The task has ended: nobody takes what the worker still answers. */
  @Override
  public void close() {
    piece.ifPresent(Piece::release);
    piece = Optional.empty();
    waiting.forEach(Request::close);
    waiting.clear();
    unsent.clear();
  }
}
