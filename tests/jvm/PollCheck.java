import io.shmring.BranchOptions;
import io.shmring.Claim;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Lease;
import io.shmring.MappedMessage;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.WaitStrategy;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/** Checks the messages that leases show: `PollCheck WHAT RING COUNT`. */
public final class PollCheck extends Checks {
  private static Object[] filled; // the heap, with arrays that lead to each other

  private PollCheck() {}

  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[2]);
    if (arguments[0].equals("single")) {
      thrown(NullPointerException.class, () -> Ring.create(arguments[1], count, null));
      thrown(NullPointerException.class, () -> Ring.createSingleProducer(arguments[1], count, null));
      Ring.createSingleProducer(arguments[1], count, new byte[0]);
    }
    try (Ring ring = Ring.attach(arguments[1])) {
      switch (arguments[0]) {
        case "ways" -> readInEveryWay(ring, count);
        case "damaged" -> meetDamage(ring);
        case "grows" -> growMeanwhile(ring);
        case "memory" -> pollWithoutMemory(ring, count);
        case "claim memory" -> claimWithoutMemory(ring, count);
        case "put" -> putLarge(ring);
        case "single" -> refuseSecondProducer(ring);
        case "larger" -> refuseLargerRing(ring, count);
        case "waits" -> waitInEveryWay(ring, count);
        case "shared" -> tellAllWhoShare(ring);
        case "race" -> closeAtOnce(ring, arguments[1], count);
        default -> throw new IllegalArgumentException(arguments[0]);
      }
    }
  }

  /** One thread is told of the end while another waits for its turn to wait. */
  private static void tellAllWhoShare(Ring ring) throws Exception {
    try (Consumer shared = ring.consumer("shared", BranchOptions.EARLIEST);
        Producer producer = ring.producer("p")) {
      AtomicInteger told = new AtomicInteger();
      Thread polling = new Thread(() -> pollToTheEnd(shared, told));
      Thread waiting = new Thread(() -> pollToTheEnd(shared, told));
      polling.start();
      while (!isWaiting(polling)) {
        Thread.onSpinWait();
      }
      waiting.start();
      awaitBlocked(waiting);
      producer.end();
      polling.join();
      waiting.join();
      check(told.get() == 2, "both are told");
    }
  }

  private static void pollToTheEnd(Consumer consumer, AtomicInteger told) {
    try {
      consumer.poll(PATIENCE);
    } catch (EndOfStreamException end) {
      told.incrementAndGet();
    } catch (InterruptedException never) {
      throw new IllegalStateException(never);
    }
  }

  /** Whether it sleeps until there is a message. */
  private static boolean isWaiting(Thread thread) {
    return Arrays.stream(thread.getStackTrace())
        .anyMatch(frame -> frame.getMethodName().equals("waitMessage"));
  }

  /** A full ring and an empty one, with each strategy on both ends. */
  private static void waitInEveryWay(Ring ring, int count) throws Exception {
    for (WaitStrategy wait : WaitStrategy.values()) {
      try (Consumer consumer = ring.consumer("waits", BranchOptions.EARLIEST, "c", wait);
          Producer producer = ring.producer("p", wait)) {
        Thread pushing = new Thread(() -> push(producer, count));
        pushing.start();
        for (int i = 0; i < count; i++) {
          try (Lease lease = consumer.poll(PATIENCE).orElseThrow()) {
            check(lease.message().bytes()[0] == (byte) i, wait + ": out of order");
          }
        }
        pushing.join();
      }
      System.out.println(wait.name().toLowerCase(Locale.ROOT) + " " + wait.ordinal());
    }
  }

  private static void push(Producer producer, int count) {
    try {
      for (int i = 0; i < count; i++) {
        producer.push(new byte[] {(byte) i}, PATIENCE).orElseThrow();
      }
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }

  private static Consumer join(Ring ring) {
    return ring.consumer("polled", BranchOptions.EARLIEST);
  }

  private static Lease lease(Consumer consumer, int count) throws Exception {
    return consumer.poll(count, Long.MAX_VALUE, PATIENCE).orElseThrow();
  }

  /** Reads leases that stay open while others are taken, and closed ones. */
  private static void readInEveryWay(Ring ring, int count) throws Exception {
    try (Consumer consumer = join(ring)) {
      for (int at = 0; at < count; at += 5) {
        Message last;
        try (Lease first = lease(consumer, 2);
            Lease second = lease(consumer, 3)) {
          checkMessages(first, at, 2);
          checkMessages(second, at + 2, 3);
          check(text(first.message().bytes()).equals(message(at)), "the first one");
          check(first.message().id() == first.first(), "its id");
          last = second.message();
        }
        refused(Status.CLOSED, last::bytes);
        refused(Status.CLOSED, () -> last.copyTo(0, ByteBuffer.allocate(0)));
      }
      Lease none = lease(consumer, 1);
      none.close();
      refused(Status.CLOSED, none::message);
      refused(Status.CLOSED, () -> none.iterator().hasNext());
    }
  }

  private static void checkMessages(Lease lease, int from, int count) {
    for (int again = 0; again < 2; again++) { // each iteration begins with the first
      List<String> got = new ArrayList<>();
      for (Message message : lease) {
        String whole = text(message.bytes());
        checkParts(message, whole);
        got.add(whole);
      }
      check(got.size() == count && lease.count() == count, "so many: " + got.size());
      for (int i = 0; i < count; i++) {
        check(got.get(i).equals(message(from + i)), "message " + (from + i));
      }
    }
    Iterator<Message> messages = lease.iterator();
    messages.next();
    check(messages.hasNext() && messages.hasNext(), "who looks ahead goes no further");
    check(text(messages.next().bytes()).equals(message(from + 1)), "the second one");
  }

  private static void checkParts(Message message, String whole) {
    int from = whole.length() / 3;
    int length = whole.length() - from;
    ByteBuffer heap = ByteBuffer.allocate(length + 4).position(1);
    ByteBuffer direct = ByteBuffer.allocateDirect(length + 4).position(2);
    for (ByteBuffer to : List.of(heap, direct, heap.slice().position(1))) {
      int start = to.position();
      to.limit(start + length);
      message.copyTo(from, to);
      check(!to.hasRemaining(), "it is full");
      byte[] bytes = new byte[length];
      to.get(start, bytes);
      check(text(bytes).equals(whole.substring(from)), "a part");
    }
    outside(() -> message.copyTo(from + 1L, ByteBuffer.allocate(length)));
    try (MappedMessage mapped = message.mapped()) {
      byte[] bytes = new byte[whole.length()];
      mapped.buffer().get(bytes);
      check(text(bytes).equals(whole), "where it lies");
    }
  }

  /** A buffer whose limit another thread raises gets no byte from behind the message. */
  private static void growMeanwhile(Ring ring) throws Exception {
    try (Consumer consumer = join(ring);
        Lease lease = lease(consumer, 1)) {
      Message message = lease.message();
      int length = (int) message.length();
      ByteBuffer to = ByteBuffer.allocate(2 * length).limit(length);
      Thread copier = new Thread(() -> message.copyTo(0, to));
      synchronized (consumer) {
        copier.start();
        awaitBlocked(copier);
        to.limit(2 * length);
      }
      copier.join();
      check(to.position() == length, "as many as remained: " + to.position());
      check(text(Arrays.copyOf(to.array(), length)).equals("a".repeat(length)), "the message");
      check(text(to.array()).indexOf('b') < 0, "and nothing of the next one");
    }
  }

  /** A message that was taken, but that there was no memory for a lease of, comes again. */
  private static void pollWithoutMemory(Ring ring, int count) throws Exception {
    int again = 0;
    try (Consumer consumer = join(ring)) {
      lease(consumer, 1).nack(); // loads what would want memory later
      try {
        throw new OutOfMemoryError();
      } catch (OutOfMemoryError loaded) {
        // this class, too
      }
      for (int i = 0; i < count; i++) {
        boolean failed =
            failsWithoutMemory(() -> consumer.poll(Duration.ZERO).orElseThrow().nack());
        try (Lease lease = lease(consumer, 1)) {
          check(text(lease.message().bytes()).equals(message(i)), "message " + i);
          again += i > 0 && failed && lease.redelivered() ? 1 : 0;
        }
      }
      check(again > 0, "memory was short behind a take");
      check(consumer.poll(Duration.ZERO).isEmpty(), "nothing is left");
    }
  }

  /** Room that was claimed, but that there was no memory for a claim of, is free for the next. */
  private static void claimWithoutMemory(Ring ring, int count) throws Exception {
    int[] lengths = {1, 2};
    int[] aligns = {-1, -1};
    int failures = 0;
    try (Producer producer = ring.producer("checked")) {
      producer.claim(1).close(); // loads what would want memory later
      producer.claimAll(lengths, aligns, Duration.ZERO).orElseThrow().close();
      for (int i = 0; i < count; i++) {
        boolean one = i % 2 == 0;
        boolean failed =
            failsWithoutMemory(
                () -> {
                  if (one) {
                    producer.claim(1).close();
                  } else {
                    producer.claimAll(lengths, aligns, Duration.ZERO).orElseThrow().close();
                  }
                });
        failures += failed ? 1 : 0;
        producer.push(new byte[] {(byte) (failed ? 1 : 0)});
      }
    }
    check(failures > 0, "memory was short behind a claim");
  }

  private static void refuseLargerRing(Ring ring, long slots) throws Exception {
    int participants = ring.participants().size();
    Ring.openOrCreate(ring.name(), slots / 2).close();
    refused(Status.EXISTS, () -> Ring.openOrCreate(ring.name(), slots));
    check(ring.participants().size() == participants, "the refused handle is closed");
    refusePathsOfFolders(ring);
  }

  /** Paths are the kernel's: one that ends in a slash, or in dots, is a folder's. */
  private static void refusePathsOfFolders(Ring ring) throws Exception {
    for (String end : List.of("/", "//", "/.", "/..")) {
      refused(Status.INVALID, () -> Ring.attach(ring.path() + end));
      refused(Status.INVALID, () -> Ring.openOrCreate(ring.path() + end, 1024));
    }
    check(Ring.path("/dev/./shm//" + ring.path().getFileName()).equals(ring.path()), "one path");
    check(Ring.path("/link/../ring").toString().equals("/link/../ring"), "the kernel follows links");
  }

  private static void refuseSecondProducer(Ring ring) throws Exception {
    check(ring.info().singleProducer(), "what the ring says of itself");
    try (Producer first = ring.producer("checked")) {
      refused(Status.SECOND_PRODUCER, () -> ring.producer("second"));
      first.push(new byte[1]);
    }
    ring.producer("checked").close();
    try (Consumer consumer = join(ring)) {
      refused(Status.INVALID, () -> consumer.poll(-1, 1, Duration.ZERO));
    }
  }

  /** Bytes of more than a part, from each kind of memory, and across the ring's end. */
  private static void putLarge(Ring ring) throws Exception {
    byte[] bytes = new byte[(5 << 19) + 7];
    new Random(1).nextBytes(bytes);
    ByteBuffer direct = ByteBuffer.allocateDirect(bytes.length + 3).position(3);
    direct.put(bytes).position(3);
    ByteBuffer heap = ByteBuffer.allocate(bytes.length + 3).position(3).slice();
    heap.put(bytes).position(0);
    try (Producer producer = ring.producer("checked");
        Consumer consumer = join(ring)) {
      for (ByteBuffer from : List.of(direct, heap, heap.asReadOnlyBuffer())) {
        try (Claim claim = producer.claim(bytes.length)) {
          check(claim.put(0, from) == bytes.length, "the offset behind them");
          check(!from.hasRemaining(), "all was put");
          claim.commit();
        }
        checkLarge(consumer, bytes);
      }
      producer.push(bytes);
      checkLarge(consumer, bytes);
    }
  }

  /** The next message, in each way of reading it. */
  private static void checkLarge(Consumer consumer, byte[] bytes) throws Exception {
    try (Lease lease = lease(consumer, 1)) {
      ByteBuffer part = ByteBuffer.allocateDirect(bytes.length - 1000);
      lease.message().copyTo(999, part);
      check(part.flip().equals(ByteBuffer.wrap(bytes, 999, bytes.length - 1000)), "a part of them");
      check(Arrays.equals(lease.message().bytes(), bytes), "a lease's bytes");
      lease.nack();
    }
    int drained =
        consumer.drain(
            message -> {
              byte[] part = new byte[bytes.length];
              ByteBuffer all = ByteBuffer.allocate(bytes.length + 1).position(1);
              message.copyTo(1, part, 2, bytes.length - 2);
              message.copyTo(0, all);
              check(Arrays.equals(message.bytes(), bytes), "a view's bytes");
              check(
                  Arrays.equals(part, 2, part.length, bytes, 1, bytes.length - 1),
                  "what was copied from 1 on");
              check(all.slice(1, bytes.length).equals(ByteBuffer.wrap(bytes)), "a buffer's");
            },
            1);
    check(drained == 1, "one message");
  }

  private static boolean failsWithoutMemory(Use use) throws Exception {
    fillMemory();
    try {
      use.run();
      return false;
    } catch (OutOfMemoryError expected) {
      return true;
    } finally {
      filled = null;
    }
  }

  private static void fillMemory() {
    for (int size = 1 << 16; size > 0; size /= 16) {
      try {
        while (true) {
          Object[] more = new Object[size];
          more[0] = filled;
          filled = more;
        }
      } catch (OutOfMemoryError full) {
        // for arrays of this size
      }
    }
  }

  /** The first message is damaged: its lease is given, and reading the message raises. */
  private static void meetDamage(Ring ring) throws Exception {
    try (Consumer consumer = join(ring)) {
      try (Lease lease = lease(consumer, 1)) {
        refused(Status.DAMAGED, lease::message);
        refused(Status.DAMAGED, () -> lease.iterator().hasNext());
      }
      try (Lease lease = lease(consumer, 10)) {
        check(text(lease.message().bytes()).equals(message(1)), "the next one");
      }
    }
  }

  /**
   * One thread takes, copies and releases, another one closes, the ring as well, which unmaps it: what
   * is gone is not looked at.
   */
  private static void closeAtOnce(Ring ring, String name, int rounds) throws Exception {
    byte[] data = new byte[100_000]; // takes its time
    Arrays.fill(data, (byte) 'x');
    try (Producer producer = ring.producer("java")) {
      for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 5; i++) {
          producer.push(data, Duration.ZERO); // full: the messages are enough
        }
        Ring unmapped = Ring.attach(name);
        closeWhileItIsPolled(unmapped, join(unmapped), round % 3 + 1, text(data));
      }
    }
  }

  private static void closeWhileItIsPolled(
      Ring ring, Consumer consumer, int after, String expected) throws Exception {
    CountDownLatch enough = new CountDownLatch(after);
    Thread closer =
        new Thread(
            () -> {
              await(enough);
              consumer.close();
              ring.close();
            });
    closer.start();
    Optional<Lease> held = Optional.empty();
    try {
      while (true) {
        held = Optional.of(lease(consumer, 1));
        enough.countDown();
        check(text(held.get().message().bytes()).equals(expected), "whole");
        held.get().close();
      }
    } catch (RingException error) {
      check(error.status() == Status.CLOSED, "closed: " + error.getMessage());
    }
    closer.join();
    held.orElseThrow().close(); // has nothing to do any more
  }
}
