package io.shmring.exchange;

import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.AnswerDecoder;
import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client.Timeouts;
import io.shmring.exchange.Client.Work;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.ObjLongConsumer;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Sends record batches to a sidecar; answers come back in the order of the batches. One thread at a
 * time may use a client. An answer is read in place, in the reply ring. The caller closes it before
 * the caller asks for the next answer, so that the workers soon have room for further answers. (The
 * client of sidecars/client.py returns copies instead.)
 *
 * <p>Several tasks use a client one after the other: {@link #begin} names the task.
 */
public final class SidecarClient implements Client {
  // Nanoseconds between two checks for living participants: a check takes a system call of about a
  // microsecond for each participant.
  private static final long LOOK_NANOS = 250_000_000;
  // Longest single wait for room for a request, and longest single wait for an answer. The client
  // alternates between the two: a worker makes no room for requests while the worker itself waits
  // until this client takes answers.
  private static final Duration SLICE = Duration.ofMillis(50);
  // Number of workers that may die while they work on one request before the request counts as the
  // cause.
  private static final int DEATHS = 3;

  private final String sidecar;
  private final long replySlots;
  private final BooleanSupplier spare;
  // Requests not answered completely, oldest first.
  private final ArrayDeque<SidecarRequest> waiting = new ArrayDeque<>();
  private RequestRing requests;
  private ReplyRing replies;
  private long number;
  private long largest; // slots of the largest answer so far, also if it did not fit
  private long needed; // slots that the reply ring needs for an answer that did not fit; else 0
  // Slots that the reply ring should have for all requests under way; 0 if it is large enough.
  private long wished;
  private int inFlight = 1;
  private boolean inputEnded; // whether the task sends no further rows
  private int batchesWanted; // batches that the sidecar wants in one request, from its last answer
  private long lastHeard;
  private long lastLook;
  private OptionalLong deadSince = OptionalLong.empty();

  private Timeouts timeouts;
  private Work work = Work.NOBODYS;
  private Runnable taskCheck;
  private Optional<AnswerDecoder> decoder = Optional.empty();
  private ObjLongConsumer<String> counts = (name, more) -> {};

  /**
   * Joins the sidecar's ring and makes a reply ring.
   *
   * @param replySlots size of the reply ring in slots; 0 for a size that grows as needed while
   *     memory remains for other rings
   * @param spare an action that is called if there is no memory for this ring: it frees memory of
   *     other rings, and returns whether it freed any
   * @param taskCheck a check that throws if the caller may not wait any longer
   * @throws FunctionException if there is no sidecar of this name, or it has no room for this
   *     client
   * @throws RingException NO_SPACE if there was no memory for the answers
   */
  public SidecarClient(
      String sidecar,
      long replySlots,
      BooleanSupplier spare,
      Timeouts timeouts,
      Runnable taskCheck)
      throws InterruptedException {
    this.sidecar = sidecar;
    this.replySlots = replySlots;
    this.spare = spare;
    this.timeouts = timeouts;
    this.taskCheck = taskCheck;
    this.requests = RequestRing.await(sidecar, timeouts, taskCheck);
    try {
      this.replies = makeReplies(ReplyRing.FIRST_SLOTS);
    } catch (RuntimeException | InterruptedException error) {
      requests.close();
      throw error;
    }
  }

  /** Returns whether memory for rings is so short that no client should be kept for later. */
  public static boolean isMemoryShort() {
    return ReplyRing.isMemoryShort();
  }

  // CHANGE: edit this for a new option of a client
  /**
   * Begins to work for a task.
   *
   * @param inFlight maximum number of requests under way
   * @param check a check that is called with the schema of an answer, at least whenever the schema
   *     has changed since the last answer
   */
  public void begin(
      Work work,
      int inFlight,
      Timeouts timeouts,
      Runnable taskCheck,
      ObjLongConsumer<String> counts,
      BufferAllocator allocator,
      Consumer<Schema> check) {
    this.work = work;
    this.inFlight = inFlight;
    this.timeouts = timeouts;
    this.taskCheck = taskCheck;
    this.decoder =
        Optional.of(
            new AnswerDecoder(allocator, check, bytes -> counts.accept("passedOnBytes", bytes)));
    this.counts = counts;
    this.batchesWanted = 1;
    this.inputEnded = false;
    this.lastHeard = System.nanoTime();
  }

  /** Ends the work for a task and drops all references to the task. */
  public void end() {
    taskCheck = () -> {};
    counts = (name, more) -> {};
    decoder = Optional.empty();
  }

  /**
   * Returns whether another task may use this client: no request is under way, and the sidecar
   * neither seems dead nor was restarted.
   */
  public boolean isReusable() {
    return waiting.isEmpty() && deadSince.isEmpty() && requests.isCurrent().orElse(false);
  }

  @Override
  public boolean isAnswered() {
    return !waiting.isEmpty() && waiting.element().complete;
  }

  @Override
  public int underWay() {
    return waiting.size();
  }

  @Override
  public void endInput() {
    inputEnded = true;
  }

  @Override
  public boolean isOver() {
    return inputEnded && waiting.isEmpty();
  }

  @Override
  public int batchesWanted() {
    return batchesWanted;
  }

  public long requestRingBytes() {
    return requests.ring.info().slots() * Ring.SLOT_BYTES;
  }

  @Override
  public String function() {
    return String.format("%s of sidecar \"%s\"", requests.functions(), sidecar);
  }

  @Override
  public void send(Rows rows) throws InterruptedException {
    EncodedBatch batch = rows.batch();
    SidecarRequest request = new SidecarRequest(number++, rows);
    waiting.add(request);
    checkSize(batch.rows(), batch.length());
    counts.accept("requests", 1);
    counts.accept("requestBytes", SidecarHead.BYTES + batch.length());
    wish(Producer.slotsFor(SidecarHead.BYTES + batch.length(), true));
    lastHeard = System.nanoTime();
    while (!request.sent) {
      advance();
    }
  }

  /**
   * Checks that the sidecar's request ring takes a batch of this size.
   *
   * @param bytes size of the batch in bytes, or a lower bound of it
   * @throws RingException TOO_LARGE if the batch does not fit
   */
  public void checkSize(long rows, long bytes) {
    long slots = requests.ring.info().slots();
    long needed = SidecarHead.BYTES + bytes;
    if (Producer.slotsFor(needed, true) <= slots / 2) {
      return;
    }
    long wanted = 2 * Long.highestOneBit(2 * Producer.slotsFor(needed, true) - 1);
    throw new RingException(
        Status.TOO_LARGE,
        "sidecar \"%s\", ring of %d slots: %d rows need at least %d bytes, a message may have %d;"
            + " make it larger with `shmring sidecar --slots %d` (Sidecar(slots=%d),"
            + " spark.shmring.sidecar.NAME.slots), or send fewer columns, or arguments of UDFs, at"
            + " a time",
        sidecar, slots, rows, needed, (slots / 2 - 1) * Ring.SLOT_BYTES, wanted, wanted);
  }

  /**
   * Returns the next piece of the answer to the oldest request; empty after the last piece. The
   * next call then returns the first piece of the answer to the next request.
   *
   * @throws FunctionException if the function raised an error, after all pieces before the error
   *     were returned
   */
  @Override
  public Optional<Client.Answer> next() throws InterruptedException {
    SidecarRequest head = waiting.element();
    if (!head.complete) {
      long begun = System.nanoTime();
      lastHeard = begun;
      while (!head.complete) {
        advance();
      }
      counts.accept("answerTime", System.nanoTime() - begun);
    }
    Optional<Client.Answer> next = head.next();
    if (next.isEmpty()) {
      head.failure
          .ifPresent(
              text -> {
                throw new FunctionException("sidecar \"%s\" raised:%n%s", sidecar, text);
              });
      waiting.remove();
      head.close();
    }
    return next;
  }

  /** Sends waiting requests and takes answers that have arrived; waits a little for either. */
  private void advance() throws InterruptedException {
    taskCheck.run();
    if (wished > replies.slots() && !isAwaited()) {
      grow();
    }
    Duration wait = SLICE;
    for (SidecarRequest request : waiting) {
      if (!request.sent && wished <= replies.slots()) {
        wait = Duration.ZERO;
        if (!push(request)) {
          break;
        }
      }
    }
    if (!collect(wait)) {
      // No answer came: perhaps workers wait until this client's reply ring has room.
      makeRoom();
      look();
    }
  }

  // CHANGE: edit this for a new field of a request
  private boolean push(SidecarRequest request) throws InterruptedException {
    byte[] head = SidecarHead.request(request.number, replies.name(), work, request.rows.atATime());
    Producer to = requests.producer;
    int kind = SidecarHead.KIND_REQUEST;
    EncodedBatch batch = request.batch();
    long bytes = batch.length();
    boolean sent = batch.push(to, head, 0, bytes, kind, Duration.ZERO).isPresent();
    if (!sent) {
      long begun = System.nanoTime();
      // Wait only a short time: the workers may be waiting for room in this client's reply ring.
      sent = batch.push(to, head, 0, bytes, kind, SLICE).isPresent();
      counts.accept("roomTime", System.nanoTime() - begun);
    }
    request.sent = sent;
    return sent;
  }

  private boolean isAwaited() {
    return waiting.stream().anyMatch(request -> request.sent && !request.complete);
  }

  /** Takes the messages that have arrived. Waits only for the first message. */
  private boolean collect(Duration timeout) throws InterruptedException {
    boolean arrived = false;
    while (isAwaited()) {
      Optional<Lease> taken;
      // CHANGE: edit this for a new error
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
    SidecarHead head = SidecarHead.of(message, replies.name());
    Optional<SidecarRequest> found =
        waiting.stream()
            .filter(each -> each.number == head.number() && !each.complete)
            .findFirst();
    if (found.isEmpty()) {
      // A duplicate answer: the first worker died after it had answered, and a second one answers.
      return false;
    }
    SidecarRequest request = found.get();
    if (head.has(SidecarHead.AGAIN)) {
      counts.accept("retries", 1);
      request.begin();
      countDeath(request);
      return false;
    }
    if (head.has(SidecarHead.LARGER) && replySlots == 0 && head.batches() > replies.slots()) {
      counts.accept("retries", 1);
      request.askAgain();
      needed = Math.max(needed, head.batches());
      largest = Math.max(largest, needed / 2);
      wish(largest);
      return false;
    }
    if (head.has(SidecarHead.ERROR)) {
      byte[] bytes = message.bytes();
      int begin = SidecarHead.BYTES;
      request.failed(new String(bytes, begin, bytes.length - begin, StandardCharsets.UTF_8));
      return false;
    }
    if (head.piece() == 0) {
      request.begin(); // drops earlier pieces: another worker may have begun the answer again
    }
    if (head.piece() != request.received) {
      throw new RingException(
          Status.DAMAGED, "ring \"%s\": piece %d of answer %d came where piece %d was due",
          replies.name(), head.piece(), head.number(), request.received);
    }
    counts.accept("answers", 1);
    counts.accept("answerBytes", message.length());
    counts.accept("workedTime", head.workedNanos());
    request.add(lease, message, decoder.orElseThrow());
    if (head.has(SidecarHead.LAST)) {
      request.complete = true;
      batchesWanted = Math.max(1, head.batches());
    }
    return true;
  }

  private void makeRoom() {
    long held = waiting.stream().mapToLong(SidecarRequest::held).min().orElse(Long.MAX_VALUE);
    if (replies.room(held) < largest) {
      copyOut();
    }
  }

  /**
   * Copies answers out of the reply ring to make room for other answers. Returns whether there were
   * any.
   */
  private boolean copyOut() {
    boolean any = false;
    for (SidecarRequest request : waiting) {
      any |= request.copy();
    }
    return any;
  }

  // --- room for answers -----------------------------------------------------------------------

  // CHANGE: edit this for a new option of a client
  /**
   * Chooses the size of the reply ring. An answer is assumed to be as large as its request until a
   * larger answer has come.
   */
  private void wish(long slots) {
    // Room for the answers of all requests under way, and for the answer that the caller is
    // reading.
    long all = Math.max(needed, (inFlight + 1) * Math.max(slots, largest));
    if (replySlots == 0 && all > replies.slots()) {
      wished = Math.max(needed, ReplyRing.fitting(all));
    }
  }

  /**
   * Replaces the reply ring by a larger one, if there is memory for it. If an answer does not fit
   * into the old ring, waits for the memory.
   */
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

  /** Makes a reply ring, and waits until there is memory for it. */
  private ReplyRing makeReplies(long wish) throws InterruptedException {
    long least =
        replySlots > 0 ? replySlots : Math.max(ReplyRing.LEAST_SLOTS, needed);
    long begun = System.nanoTime();
    while (true) {
      Optional<ReplyRing> made = ReplyRing.make(sidecar, least, replySlots > 0 ? least : wish);
      if (made.isPresent()) {
        return made.get();
      }
      taskCheck.run();
      if (!spare.getAsBoolean()) {
        if (System.nanoTime() - begun >= Timeouts.nanos(timeouts.connectTimeout())) {
          throw ReplyRing.noMemory(least, timeouts);
        }
        Thread.sleep(SLICE.toMillis());
      }
    }
  }

  // --- is the sidecar alive? ---------------------------------------------------------------------

  /** Ends the wait by an error if the sidecar is dead or has not answered for too long. */
  private void look() throws InterruptedException {
    long now = System.nanoTime();
    if (now - lastLook < LOOK_NANOS) {
      return;
    }
    lastLook = now;
    if (requests.isServed()) {
      deadSince = OptionalLong.empty();
    } else if (deadSince.isEmpty()) {
      deadSince = OptionalLong.of(now);
    } else if (!requests.isCurrent().orElse(true)) { // the sidecar was restarted
      follow();
      deadSince = OptionalLong.of(now);
    } else if (now - deadSince.getAsLong() > Timeouts.nanos(timeouts.connectTimeout())) {
      throw new FunctionException(
          "sidecar \"%s\" has no living worker, nor a supervisor whose workers load, and"
              + " none came within %s s (connect_timeout=...); %d requests were under way; the log of"
              + " what started it says why it ended",
          sidecar, Timeouts.text(timeouts.connectTimeout()), waiting.size());
    }
    if (deadSince.isEmpty() && now - lastHeard > Timeouts.nanos(timeouts.timeout())) {
      throw new FunctionException(
          "sidecar \"%s\" lives but has not answered process %d for %s s: %s; give it more time"
              + " (timeout=...) or more workers",
          sidecar, ProcessHandle.current().pid(), Timeouts.text(timeouts.timeout()),
          requests.describe());
    }
  }

  /**
   * Joins the ring of a restarted sidecar and makes a new reply ring. Marks the requests that lack
   * answers as not sent, so that advance() sends them again.
   */
  private void follow() throws InterruptedException {
    RequestRing found = RequestRing.await(sidecar, timeouts, taskCheck);
    requests.close();
    requests = found;
    copyOut();
    long slots = replies.slots();
    replies.close();
    replies = makeReplies(Math.max(slots, wished));
    wished = 0;
    batchesWanted = 1;
    for (SidecarRequest request : waiting) {
      if (!request.complete) {
        // The batch may have ended the whole sidecar: do not send it again for ever.
        if (request.received > 0) {
          countDeath(request);
        }
        request.askAgain();
        counts.accept("retries", 1);
      }
    }
  }

  /** Counts the end of a worker that worked on the request. Throws after the last try. */
  private void countDeath(SidecarRequest request) {
    if (++request.deaths >= DEATHS) {
      throw new FunctionException(
          "%d workers of sidecar \"%s\" have died over the same batch of %d rows; see what the"
              + " sidecar says of their deaths",
          DEATHS, sidecar, request.batch().rows());
    }
  }

  /** Leaves the sidecar's ring and removes the reply ring. Answers that come later are dropped. */
  @Override
  public void close() {
    waiting.forEach(SidecarRequest::close);
    waiting.clear();
    replies.close();
    requests.close();
    if (deadSince.isPresent()) { // remove the dead sidecar's ring: perhaps no other process does
      Ring.reap(RequestRing.name(sidecar));
    }
  }
}
