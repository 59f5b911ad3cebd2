package io.shmring.sidecar;

import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.EncodedBatch;
import io.shmring.arrow.StreamDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Sends record batches to a sidecar; answers come back in the order of the batches. One thread at a
 * time has it. It is SidecarClient of sidecars/client.py, save that its caller has done with an
 * answer before it asks for more, so that answers never stand in each other's way for long.
 *
 * <p>Used by one task after another: {@link #begin} says for whom.
 */
public final class SidecarClient implements AutoCloseable {
  // Liveness is asked of the kernel, a microsecond a participant: this is often enough.
  private static final long LOOK_NANOS = 250_000_000;
  // A wait is cut into slices of this length to look at the other direction.
  private static final Duration SLICE = Duration.ofMillis(50);
  private static final long LONGEST_PAUSE_MILLIS = 1000;
  // So many workers may die over one request before it is held to be the cause.
  private static final int DEATHS = 3;

  /** Looks whether the caller may go on waiting, and throws if not. */
  public interface Pulse {
    void check();
  }

  private final String sidecar;
  private final long replySlots;
  private final ArrayDeque<Request> waiting = new ArrayDeque<>(); // in the order of the batches
  private Watch watch = new Watch();
  private RequestRing requests;
  private ReplyRing replies;
  private long number;
  private int largest; // message that has come, in slots
  private int welcome; // batches in a request, as the sidecar said last
  private long lastSign;
  private long lastLook;
  private OptionalLong deadSince = OptionalLong.empty();

  private Patience patience;
  private Work work = Work.NOBODYS;
  private Pulse pulse;
  private Optional<StreamDecoder> decoder = Optional.empty();
  private Counters counters = new Counters();

  /**
   * Takes seats in the sidecar's ring and makes one for the answers.
   *
   * @param replySlots size of that; 0: as large as leaves others room
   * @throws SidecarException if there is no sidecar of this name, or it has no seat for this client
   */
  public SidecarClient(String sidecar, long replySlots, Patience patience, Pulse pulse)
      throws InterruptedException {
    this.sidecar = sidecar;
    this.replySlots = replySlots;
    this.patience = patience;
    this.pulse = pulse;
    this.requests = awaitSeats();
    try {
      this.replies = ReplyRing.make(sidecar, replySlots);
    } catch (RuntimeException error) {
      requests.close();
      throw error;
    }
  }

  /**
   * Works for somebody from now on.
   *
   * @param check called with each schema of an answer that is another one than the last
   */
  public void begin(
      Work work, Patience patience, Pulse pulse, BufferAllocator allocator, Consumer<Schema> check) {
    this.work = work;
    this.patience = patience;
    this.pulse = pulse;
    this.decoder = Optional.of(new StreamDecoder(Head.BYTES, allocator, check));
    this.counters = new Counters();
    this.welcome = 1;
    this.lastSign = System.nanoTime();
  }

  /** Works for nobody any more; what its user was is forgotten. */
  public void end() {
    pulse = () -> {};
    decoder = Optional.empty();
  }

  /** What was done since {@link #begin} or since the last call of this, whichever was later. */
  public Counters takeCounters() {
    Counters taken = counters;
    counters = new Counters();
    return taken;
  }

  /** Whether nothing is under way, and the sidecar's ring is still the one of its name. */
  public boolean isReusable() {
    return waiting.isEmpty() && deadSince.isEmpty() && requests.isCurrent();
  }

  /** Whether the answer to the oldest request has come. */
  public boolean isAnswered() {
    return !waiting.isEmpty() && waiting.element().isComplete();
  }

  /** How many requests are not answered yet. */
  public int underWay() {
    return waiting.size();
  }

  /** How many batches the sidecar would like in a request. */
  public int welcome() {
    return welcome;
  }

  /** Bytes that the sidecar's ring holds. */
  public long requestRingBytes() {
    return requests.ring().info().slots() * Ring.SLOT_BYTES;
  }

  /** What the sidecar runs, for the text of an error. */
  public String function() {
    return String.format("%s of sidecar \"%s\"", RequestRing.functions(sidecar), sidecar);
  }

  /**
   * Sends a batch, or several as one, and waits for room. All answers that were given out must be
   * closed.
   *
   * @param rows that the function gets at a time, which is then a batch for it; 0: all
   * @param answered runs once the batch is not needed any more; it was closed then
   */
  public void send(EncodedBatch batch, int rows, Runnable answered) throws InterruptedException {
    Request request = new Request(number++, batch, rows, answered);
    waiting.add(request);
    checkSize(batch.rows(), batch.length());
    counters.sent(Head.BYTES + batch.length());
    lastSign = System.nanoTime();
    while (!request.isSent()) {
      advance();
    }
  }

  /**
   * Whether the sidecar's ring takes such a batch.
   *
   * @param bytes of the batch, or fewer
   * @throws RingException if the ring does not
   */
  public void checkSize(long rows, long bytes) {
    long slots = requests.ring().info().slots();
    long needed = Head.BYTES + bytes;
    if (Producer.slotsFor(needed, true) <= slots / 2) {
      return;
    }
    long wanted = slots;
    while (Producer.slotsFor(needed, true) > wanted / 2) {
      wanted *= 2;
    }
    throw new RingException(
        Status.TOO_LARGE,
        String.format(
            "sidecar \"%s\", ring of %d slots: %d rows need at least %d bytes, a message may have %d; make"
                + " it larger with `shmring sidecar --slots %d` (Sidecar(slots=%d),"
                + " spark.shmring.sidecar.NAME.slots), or send fewer columns, or arguments of UDFs, at"
                + " a time",
            sidecar,
            slots,
            rows,
            needed,
            (slots / 2 - 1) * Ring.SLOT_BYTES,
            wanted,
            wanted));
  }

  /**
   * The next piece of the answer to the oldest request; empty if it has no more, and then the next
   * call is about the one that was sent after it. The one before must be closed.
   *
   * @throws SidecarException if the function raised behind what it answered
   */
  public Optional<Answer> next() throws InterruptedException {
    Request head = waiting.element();
    if (!head.isComplete()) {
      long begun = System.nanoTime();
      lastSign = begun;
      while (!head.isComplete()) {
        advance();
      }
      counters.waitedForAnswers(System.nanoTime() - begun);
    }
    Optional<Answer> next = head.next();
    if (next.isEmpty()) {
      head.failure()
          .ifPresent(
              text -> {
                throw new SidecarException(
                    String.format("sidecar \"%s\" raised:%n%s", sidecar, text));
              });
      waiting.remove();
      head.close();
    }
    return next;
  }

  /** Sends what is to be sent and takes what has arrived; waits a little for either. */
  private void advance() throws InterruptedException {
    pulse.check();
    Duration wait = SLICE;
    for (Request request : waiting) {
      if (!request.isSent()) {
        wait = Duration.ZERO;
        if (!push(request)) {
          break;
        }
      }
    }
    if (!collect(wait)) {
      look();
    }
  }

  private boolean push(Request request) throws InterruptedException {
    byte[] head = Head.request(request.number(), replies.name(), work, request.rows()).pack();
    boolean sent = push(request, head, Duration.ZERO);
    if (!sent) {
      long begun = System.nanoTime();
      // The workers may be waiting for room among our answers: not for long.
      sent = push(request, head, SLICE);
      counters.waitedForRoom(System.nanoTime() - begun);
    }
    if (sent) {
      request.sent();
    }
    return sent;
  }

  private boolean push(Request request, byte[] head, Duration wait) throws InterruptedException {
    return request.batch().push(requests.producer(), head, Head.KIND_REQUEST, wait).isPresent();
  }

  /** Takes what has arrived; waits for the first message only. */
  private boolean collect(Duration timeout) throws InterruptedException {
    boolean arrived = false;
    while (waiting.stream().anyMatch(request -> request.isSent() && !request.isComplete())) {
      Optional<Lease> taken;
      try {
        taken = replies.poll(arrived ? Duration.ZERO : timeout);
      } catch (RingException error) {
        if (error.status() != Status.LEASES || !copyOut()) {
          throw error;
        }
        break;
      }
      if (taken.isEmpty()) {
        break;
      }
      arrived = true;
      lastSign = System.nanoTime();
      deadSince = OptionalLong.empty();
      take(taken.get());
    }
    return arrived;
  }

  private void take(Lease lease) {
    Message message = lease.message();
    boolean kept = false;
    try {
      kept = accept(lease, message);
    } finally {
      if (!kept) {
        lease.close();
      }
    }
    largest = Math.max(largest, message.slots());
    long held = waiting.stream().mapToLong(Request::held).min().orElse(Long.MAX_VALUE);
    if (replies.room(held) < largest) {
      copyOut();
    }
  }

  private boolean accept(Lease lease, Message message) {
    Head head = Head.of(message, replies.name());
    Optional<Request> found =
        waiting.stream()
            .filter(each -> each.number() == head.number() && !each.isComplete())
            .findFirst();
    if (found.isEmpty()) {
      return false; // a second worker has done it again after the first one's death
    }
    Request request = found.get();
    if (head.has(Head.AGAIN)) {
      counters.retried();
      request.begin();
      if (request.died() >= DEATHS) {
        throw new SidecarException(
            String.format(
                "%d workers of sidecar \"%s\" have died over the same %s; see what the sidecar says of"
                    + " their deaths",
                DEATHS, sidecar, request.describe()));
      }
      return false;
    }
    if (head.has(Head.ERROR)) {
      byte[] bytes = message.bytes();
      request.failed(
          new String(bytes, Head.BYTES, bytes.length - Head.BYTES, StandardCharsets.UTF_8));
      return false;
    }
    if (head.piece() == 0) {
      request.begin(); // begun again by another worker
    }
    if (head.piece() != request.received()) {
      throw new RingException(
          Status.DAMAGED,
          String.format(
              "ring \"%s\": piece %d of answer %d came where piece %d was due",
              replies.name(), head.piece(), head.number(), request.received()));
    }
    counters.answered(message.length(), head.workedNanos());
    request.add(lease, message, decoder.orElseThrow());
    if (head.has(Head.LAST)) {
      request.completed();
      welcome = Math.max(1, head.batches());
    }
    return true;
  }

  /** Copies answers out of the ring, so that there is room for others; whether there were any. */
  private boolean copyOut() {
    boolean any = false;
    for (Request request : waiting) {
      any |= request.copy();
    }
    return any;
  }

  // --- is anybody there? ----------------------------------------------------------------------

  /** Sees to it that this wait has an end. */
  private void look() throws InterruptedException {
    long now = System.nanoTime();
    if (now - lastLook < LOOK_NANOS) {
      return;
    }
    lastLook = now;
    if (watch.look(requests.ring())) {
      deadSince = OptionalLong.empty();
    } else if (deadSince.isEmpty()) {
      deadSince = OptionalLong.of(now);
    } else if (requests.wasReplaced()) {
      follow();
      deadSince = OptionalLong.of(now);
    } else if (now - deadSince.getAsLong() > patience.patienceNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" has no living worker and no supervisor, and none came within %s s"
                  + " (patience=...); %d requests were under way; the log of what started it says"
                  + " why it ended",
              sidecar, patience.patienceText(), waiting.size()));
    }
    if (deadSince.isEmpty() && now - lastSign > patience.timeoutNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" lives but has not answered process %d for %s s: %s; give it more time"
                  + " (timeout=...) or more workers",
              sidecar,
              ProcessHandle.current().pid(),
              patience.timeoutText(),
              watch.describe(requests.ring())));
    }
  }

  /** Goes to the ring of a sidecar that was started anew, and asks again, into a new reply ring. */
  private void follow() throws InterruptedException {
    RequestRing found = awaitSeats();
    requests.close();
    requests = found;
    watch = new Watch();
    copyOut();
    replies.close();
    replies = ReplyRing.make(sidecar, replySlots);
    welcome = 1;
    for (Request request : waiting) {
      if (!request.isComplete()) {
        request.askAgain();
        counters.retried();
      }
    }
  }

  private RequestRing awaitSeats() throws InterruptedException {
    long begun = System.nanoTime();
    long pause = SLICE.toMillis();
    while (true) {
      pulse.check();
      long waited = System.nanoTime() - begun;
      try {
        return RequestRing.enter(sidecar);
      } catch (RingException error) {
        if (error.status() == Status.NOT_FOUND) {
          checkPatience(waited);
          Thread.sleep(SLICE.toMillis());
        } else if (error.status() == Status.LIMIT) {
          checkTimeout(waited);
          Thread.sleep(ThreadLocalRandom.current().nextLong(pause / 2, pause + 1));
          pause = Math.min(2 * pause, LONGEST_PAUSE_MILLIS);
        } else {
          throw error;
        }
      }
    }
  }

  private void checkPatience(long waited) {
    if (waited >= patience.patienceNanos()) {
      throw new SidecarException(
          String.format(
              "no sidecar \"%s\" on this host (waited %s s, patience=...); start it with `shmring"
                  + " sidecar module:function --name %s`, or see in the log of what should have"
                  + " started it why it is not there",
              sidecar, patience.patienceText(), sidecar));
    }
  }

  private void checkTimeout(long waited) {
    if (waited >= patience.timeoutNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" has had no seat for another client for %s s: %s; let fewer tasks run"
                  + " at a time on a host, share their work between sidecars of several names, or"
                  + " wait longer (timeout=...)",
              sidecar, patience.timeoutText(), RequestRing.crowd(sidecar)));
    }
  }

  /** Leaves, and removes the reply ring: what is still to come finds none. */
  @Override
  public void close() {
    waiting.forEach(Request::close);
    waiting.clear();
    replies.close();
    requests.close();
    if (deadSince.isPresent()) { // nobody else may come to sweep
      Ring.reap(RequestRing.name(sidecar));
    }
  }
}
