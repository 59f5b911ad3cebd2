package io.shmring.exchange;

import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.arrow.AnswerDecoder;
import io.shmring.arrow.EncodedBatch;
import java.util.ArrayDeque;
import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;

/**
 * A batch under way. The batch is kept until it is answered, because it may have to be sent again.
 */
final class SidecarRequest {
  /** One message of the answer, either in the reply ring or copied out of the ring. */
  private final class Piece {
    private final Lease lease;
    private final AnswerDecoder decoder;
    private Optional<VectorSchemaRoot> root = Optional.empty();
    private boolean copied;

    Piece(Lease lease, AnswerDecoder decoder) {
      this.lease = lease;
      this.decoder = decoder;
    }

    private void decode(boolean inPlace) {
      VectorSchemaRoot columns = rows.batch().columns();
      root = Optional.of(decoder.decode(lease.message(), SidecarHead.BYTES, columns, inPlace));
    }

    boolean copy() {
      if (copied) {
        return false;
      }
      decode(false);
      copied = true;
      lease.close();
      return true;
    }

    /**
     * Decodes the answer, which the caller closes. If decoding fails, the request closes this
     * piece.
     */
    Client.Answer answer() {
      if (root.isEmpty()) {
        decode(true);
      }
      return new Client.Answer(root.get(), this::close);
    }

    void close() {
      root.ifPresent(VectorSchemaRoot::close);
      lease.close();
    }
  }

  final long number;
  final Client.Rows rows;
  private final ArrayDeque<Piece> pieces = new ArrayDeque<>();
  int received; // number of pieces of the answer that have arrived
  int deaths; // number of workers that died while they worked on this request
  boolean sent;
  boolean complete;
  // Text of the function's error, which comes after the last piece.
  Optional<String> failure = Optional.empty();

  SidecarRequest(long number, Client.Rows rows) {
    this.number = number;
    this.rows = rows;
  }

  EncodedBatch batch() {
    return rows.batch();
  }

  /**
   * Notes that the function raised an error. Pieces that came before the error are still given out
   * first.
   */
  void failed(String text) {
    failure = Optional.of(text);
    complete = true;
  }

  void add(Lease lease, Message message, AnswerDecoder decoder) {
    received++;
    if (message.length() > SidecarHead.BYTES) {
      pieces.add(new Piece(lease, decoder));
    } else {
      lease.close();
    }
  }

  /**
   * Drops the pieces that have arrived: another worker begins the answer again, or the request will
   * be sent again.
   */
  void begin() {
    pieces.forEach(Piece::close);
    pieces.clear();
    received = 0;
  }

  void askAgain() {
    begin();
    sent = false;
  }

  /** Copies the arrived pieces out of the ring. Returns whether any piece was still in the ring. */
  boolean copy() {
    boolean any = false;
    for (Piece piece : pieces) {
      any |= piece.copy();
    }
    return any;
  }

  /** Returns the lowest sequence of the reply ring that this request holds. */
  long held() {
    return pieces.stream()
        .filter(piece -> !piece.copied)
        .mapToLong(piece -> piece.lease.first())
        .min()
        .orElse(Long.MAX_VALUE);
  }

  /** Returns the next piece of the answer; the caller closes it. */
  Optional<Client.Answer> next() {
    Optional<Client.Answer> next = Optional.ofNullable(pieces.peek()).map(Piece::answer);
    pieces.poll();
    return next;
  }

  void close() {
    begin();
    rows.close();
  }
}
