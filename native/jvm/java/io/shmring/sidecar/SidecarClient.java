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
  // So many workers may die over one request before it is held to be the cause.
  private static final int DEATHS = 3;

  /** Looks whether the caller may go on waiting, and throws if not. */
  public interface TaskCheck {
    void check();
  }

  /** Memory that is kept for later, and that nobody needs now. */
  public interface Spare {
    /** Gives some of it back; whether there was any. */
    boolean giveBack();
  }

  private final String sidecar;
  private final long replySlots;
  private final Spare spare;
  private final ArrayDeque<Request> waiting = new ArrayDeque<>(); // in the order of the batches
  private Watch watch = new Watch();
  private RequestRing requests;
  private ReplyRing replies;
  private long number;
  private long largest; // message that has come, or is to come again, in slots
  private long needed; // slots of the reply ring, for an answer that did not fit
  private long wished; // slots of the reply ring, for what is under way
  private int inFlight = 1;
  private int batchesWanted; // batches in a request, as the sidecar said last
  private long lastHeard;
  private long lastLook;
  private OptionalLong deadSince = OptionalLong.empty();

  private Timeouts timeouts;
  private Work work = Work.NOBODYS;
  private TaskCheck taskCheck;
  private Optional<StreamDecoder> decoder = Optional.empty();
  private Counters counters = new Counters();

  /**
   * Takes part in the sidecar's ring and makes one for the answers.
   *
   * @param replySlots size of that; 0: as is needed, and as large as leaves others room
   * @param spare what goes first where there is no memory for it
   * @throws SidecarException if there is no sidecar of this name, or it has no room for this client
   * @throws RingException NO_SPACE if there was no memory for the answers
   */
  public SidecarClient(
      String sidecar, long replySlots, Spare spare, Timeouts timeouts, TaskCheck taskCheck)
      throws InterruptedException {
    this.sidecar = sidecar;
    this.replySlots = replySlots;
    this.spare = spare;
    this.timeouts = timeouts;
    this.taskCheck = taskCheck;
    this.requests = Entrance.await(sidecar, timeouts, taskCheck);
    try {
      this.replies = makeReplies(ReplyRing.FIRST_SLOTS);
    } catch (RuntimeException | InterruptedException error) {
      requests.close();
      throw error;
    }
  }

  /** Whether there is so little memory for rings that nobody should keep a client for later. */
  public static boolean isMemoryShort() {
    return ReplyRing.isMemoryShort();
  }

  /**
   * Works for somebody from now on.
   *
   * @param inFlight requests under way at most
   * @param check called with each schema of an answer that is another one than the last
   */
  public void begin(
      Work work,
      int inFlight,
      Timeouts timeouts,
      TaskCheck taskCheck,
      BufferAllocator allocator,
      Consumer<Schema> check) {
    this.work = work;
    this.inFlight = inFlight;
    this.timeouts = timeouts;
    this.taskCheck = taskCheck;
    this.decoder = Optional.of(new StreamDecoder(Head.BYTES, allocator, check));
    this.counters = new Counters();
    this.batchesWanted = 1;
    this.lastHeard = System.nanoTime();
  }

  /** Works for nobody any more; what its user was is forgotten. */
  public void end() {
    taskCheck = () -> {};
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
  public int batchesWanted() {
    return batchesWanted;
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
    wish(Producer.slotsFor(Head.BYTES + batch.length(), true));
    lastHeard = System.nanoTime();
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
      lastHeard = begun;
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
    taskCheck.check();
    if (wished > replies.slots() && !isAwaited()) {
      grow();
    }
    Duration wait = SLICE;
    for (Request request : waiting) {
      if (!request.isSent() && wished <= replies.slots()) {
        wait = Duration.ZERO;
        if (!push(request)) {
          break;
        }
      }
    }
    if (!collect(wait)) {
      makeRoom(); // the workers may hold requests in the sidecar's ring until they can answer them
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

  /** Whether answers are to come. */
  private boolean isAwaited() {
    return waiting.stream().anyMatch(request -> request.isSent() && !request.isComplete());
  }

  /** Takes what has arrived; waits for the first message only. */
  private boolean collect(Duration timeout) throws InterruptedException {
    boolean arrived = false;
    while (isAwaited()) {
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
      lastHeard = System.nanoTime();
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
    if (isAwaited()) {
      makeRoom();
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
    if (head.has(Head.LARGER) && replySlots == 0 && head.batches() > replies.slots()) {
      counters.retried();
      request.askAgain();
      needed = Math.max(needed, head.batches());
      largest = Math.max(largest, needed / 2);
      wish(largest);
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
      batchesWanted = Math.max(1, head.batches());
    }
    return true;
  }

  /** Sees to it that the next answer fits. */
  private void makeRoom() {
    long held = waiting.stream().mapToLong(Request::held).min().orElse(Long.MAX_VALUE);
    if (replies.room(held) < largest) {
      copyOut();
    }
  }

  /** Copies answers out of the ring, so that there is room for others; whether there were any. */
  private boolean copyOut() {
    boolean any = false;
    for (Request request : waiting) {
      any |= request.copy();
    }
    return any;
  }

  // --- room for answers -----------------------------------------------------------------------

  /** Answers are taken to be as large as requests, until larger ones have come. */
  private void wish(long slots) {
    long all = Math.max(needed, (inFlight + 1) * Math.max(slots, largest)); // and one that is read
    if (replySlots == 0 && all > replies.slots()) {
      wished = Math.max(needed, ReplyRing.fitting(all));
    }
  }

  /** Takes a larger reply ring, if there is memory for it or it has to be. */
  private void grow() throws InterruptedException {
    Optional<ReplyRing> larger =
        needed > replies.slots()
            ? Optional.of(makeReplies(wished))
            : ReplyRing.make(sidecar, wished, wished);
    copyOut();
    larger.ifPresent(
        made -> {
          replies.close();
          replies = made;
        });
    wished = 0;
  }

  /** Makes a reply ring, for which it waits until there is memory. */
  private ReplyRing makeReplies(long wish) throws InterruptedException {
    long least =
        replySlots > 0 ? replySlots : Math.max(ReplyRing.LEAST_SLOTS, needed);
    long begun = System.nanoTime();
    while (true) {
      Optional<ReplyRing> made = ReplyRing.make(sidecar, least, replySlots > 0 ? least : wish);
      if (made.isPresent()) {
        return made.get();
      }
      taskCheck.check();
      if (!spare.giveBack()) {
        if (System.nanoTime() - begun >= timeouts.connectNanos()) {
          throw ReplyRing.noMemory(least, timeouts);
        }
        Thread.sleep(SLICE.toMillis());
      }
    }
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
    } else if (now - deadSince.getAsLong() > timeouts.connectNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" has no living worker and no supervisor, and none came within %s s"
                  + " (connect_timeout=...); %d requests were under way; the log of what started it says"
                  + " why it ended",
              sidecar, timeouts.connectText(), waiting.size()));
    }
    if (deadSince.isEmpty() && now - lastHeard > timeouts.timeoutNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" lives but has not answered process %d for %s s: %s; give it more time"
                  + " (timeout=...) or more workers",
              sidecar,
              ProcessHandle.current().pid(),
              timeouts.timeoutText(),
              watch.describe(requests.ring())));
    }
  }

  /** Goes to the ring of a sidecar that was started anew, and asks again, into a new reply ring. */
  private void follow() throws InterruptedException {
    RequestRing found = Entrance.await(sidecar, timeouts, taskCheck);
    requests.close();
    requests = found;
    watch = new Watch();
    copyOut();
    long slots = replies.slots();
    replies.close();
    replies = makeReplies(Math.max(slots, wished));
    wished = 0;
    batchesWanted = 1;
    for (Request request : waiting) {
      if (!request.isComplete()) {
        request.askAgain();
        counters.retried();
      }
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
