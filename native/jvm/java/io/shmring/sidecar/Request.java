package io.shmring.sidecar;

import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.arrow.EncodedBatch;
import io.shmring.arrow.StreamDecoder;
import java.util.ArrayDeque;
import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;

/** A batch under way, kept until it is answered: the sidecar may have to be asked again. */
final class Request {
  /** A part of the answer: in the reply ring, or copied out. */
  private static final class Piece implements Answer {
    private final Lease lease;
    private final StreamDecoder decoder;
    private Optional<VectorSchemaRoot> root = Optional.empty();
    private boolean copied;

    Piece(Lease lease, StreamDecoder decoder) {
      this.lease = lease;
      this.decoder = decoder;
    }

    boolean copy() {
      if (copied) {
        return false;
      }
      root = Optional.of(decoder.copy(lease.message()));
      copied = true;
      lease.close();
      return true;
    }

    @Override
    public VectorSchemaRoot batch() {
      if (root.isEmpty()) {
        root = Optional.of(decoder.map(lease.message(), () -> {}));
      }
      return root.get();
    }

    @Override
    public void close() {
      root.ifPresent(VectorSchemaRoot::close);
      lease.close();
    }
  }

  private final long number;
  private final EncodedBatch batch;
  private final int rows;
  private final Runnable answered;
  private final ArrayDeque<Piece> pieces = new ArrayDeque<>();
  private int received;
  private int deaths;
  private boolean sent;
  private boolean complete;
  private Optional<String> failure = Optional.empty();

  /**
   * @param rows that the function gets at a time; 0: all
   */
  Request(long number, EncodedBatch batch, int rows, Runnable answered) {
    this.number = number;
    this.batch = batch;
    this.rows = rows;
    this.answered = answered;
  }

  long number() {
    return number;
  }

  EncodedBatch batch() {
    return batch;
  }

  int rows() {
    return rows;
  }

  /** What it holds, for the text of an error. */
  String describe() {
    int all = batch.rows();
    return rows > 0 && rows < all
        ? String.format("%d batches of %d rows", (all + rows - 1) / rows, rows)
        : String.format("batch of %d rows", all);
  }

  boolean isSent() {
    return sent;
  }

  void sent() {
    sent = true;
  }

  boolean isComplete() {
    return complete;
  }

  void completed() {
    complete = true;
  }

  /** The function has raised; what it answered before that comes first. */
  void failed(String text) {
    failure = Optional.of(text);
    complete = true;
  }

  /** What the function has raised, once there are no more pieces. */
  Optional<String> failure() {
    return failure;
  }

  /** Counts a worker that died over this; how many there were. */
  int died() {
    return ++deaths;
  }

  /** How many pieces of the answer have come. */
  int received() {
    return received;
  }

  void add(Lease lease, Message message, StreamDecoder decoder) {
    received++;
    if (message.length() > Head.BYTES) {
      pieces.add(new Piece(lease, decoder));
    } else {
      lease.close();
    }
  }

  /** Another worker begins its answer, or is to be asked. */
  void begin() {
    pieces.forEach(Piece::close);
    pieces.clear();
    received = 0;
  }

  void askAgain() {
    begin();
    sent = false;
  }

  /** Copies what has come out of the ring; whether there was anything. */
  boolean copy() {
    boolean any = false;
    for (Piece piece : pieces) {
      any |= piece.copy();
    }
    return any;
  }

  /** The lowest sequence in the ring that this holds. */
  long held() {
    return pieces.stream()
        .filter(piece -> !piece.copied)
        .mapToLong(piece -> piece.lease.first())
        .min()
        .orElse(Long.MAX_VALUE);
  }

  /** The next piece of the answer, which the caller closes. */
  Optional<Answer> next() {
    return Optional.ofNullable(pieces.poll());
  }

  /** Gives back all that is held for this. */
  void close() {
    begin();
    batch.close();
    answered.run();
  }
}
