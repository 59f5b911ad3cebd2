import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.MessageHandler;
import io.shmring.MessageRoom;
import io.shmring.MessageView;
import io.shmring.MessageWriter;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.arrow.memory.util.MemoryUtil;

/** Many messages a call: `DrainCheck WHAT RING COUNT`. */
public final class DrainCheck extends Checks {
  private DrainCheck() {}

  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[2]);
    try (Ring ring = Ring.attach(arguments[1])) {
      switch (arguments[0]) {
        case "drain" -> drain(ring, count);
        case "push" -> push(ring, count);
        case "throw" -> throwInHandler(ring, count);
        case "late" -> useLate(ring);
        case "again" -> useAgain(ring);
        case "threads" -> drainInThreads(ring, count);
        case "closed" -> closeMeanwhile(ring);
        case "damaged" -> meetDamage(ring);
        case "aborted" -> meetAborted(ring);
        case "stopped", "stopped damaged" -> drainWhileStopped(ring, arguments[0]);
        case "writer" -> throwInWriter(ring);
        default -> throw new IllegalArgumentException(arguments[0]);
      }
    }
  }

  private static Consumer join(Ring ring) {
    return ring.consumer("drained", BranchOptions.EARLIEST);
  }

  private static String text(MessageView message) {
    return text(message.bytes());
  }

  private static String textByAddress(MessageView message) {
    byte[] bytes = new byte[(int) message.length()];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = MemoryUtil.getByte(message.address() + i);
    }
    return text(bytes);
  }

  private static void drain(Ring ring, int count) throws Exception {
    int[] next = {0};
    try (Consumer consumer = join(ring)) {
      while (next[0] < count) {
        int before = next[0];
        int got =
            consumer.drain(
                message -> {
                  check(text(message).equals(message(next[0])), "message " + next[0]);
                  check(textByAddress(message).equals(message(next[0])), "where it says");
                  check(message.length() == message(next[0]).length(), "length");
                  next[0]++;
                },
                100,
                PATIENCE);
        check(got == next[0] - before && got <= 100, "as many as it says");
      }
      thrown(
          EndOfStreamException.class,
          () -> consumer.drain(message -> check(false, "nothing is left"), 100, PATIENCE));
      check(consumer.drain(message -> {}, 100) == 0, "nothing is left");
    }
  }

  private static void push(Ring ring, int count) throws Exception {
    try (Producer producer = ring.producer("java")) {
      for (int i = 0; i < count; i += 100) {
        int from = i;
        producer.pushMany(100, (index, room) -> put(room, message((from + index) % 300)));
      }
      producer.end();
    }
  }

  private static int put(MessageRoom room, String text) {
    byte[] bytes = bytes(text);
    room.put(0, bytes, 0, bytes.length / 2);
    return room.put(
        bytes.length / 2, ByteBuffer.wrap(bytes, bytes.length / 2, (bytes.length + 1) / 2));
  }

  /** Throws at each message once: what came before is done with, the rest comes again. */
  private static void throwInHandler(Ring ring, int count) throws Exception {
    List<String> done = new ArrayList<>();
    int failures = 0;
    try (Consumer consumer = join(ring)) {
      while (done.size() < count) {
        int before = done.size();
        int enough = before + Math.min(before, 3);
        try {
          consumer.drain(
              message -> {
                if (done.size() == enough) {
                  throw new IllegalStateException("enough");
                }
                done.add(text(message));
              },
              10);
        } catch (IllegalStateException error) {
          check(error.getSuppressed().length == 0, "handed back");
          failures++;
        }
        check(done.size() <= enough, "no further than it came");
        if (before == 0) { // the first one was never let through
          consumer.drain(message -> done.add(text(message)), 1);
        }
      }
      check(failures > 1, "it failed");
      for (int i = 0; i < count; i++) {
        check(done.get(i).equals(message(i)), "message " + i + " is " + done.get(i));
      }
      check(consumer.drain(message -> {}, 10) == 0, "nothing is left");
    }
  }

  /** A view that was kept shows nothing, and none is shown to another thread. */
  private static void useLate(Ring ring) throws Exception {
    ExecutorService threads = Executors.newSingleThreadExecutor();
    MessageView[] kept = new MessageView[1];
    try (Consumer consumer = join(ring)) {
      int got =
          consumer.drain(
              message -> {
                kept[0] = message;
                check(message.getByte(0) == '0', "here");
                refusedElsewhere(Status.CLOSED, message::length, threads);
                refusedElsewhere(Status.CLOSED, message::address, threads);
                refusedElsewhere(Status.CLOSED, () -> message.getByte(0), threads);
                outside(() -> message.getByte((int) message.length()));
                outside(() -> message.getLong(-1));
                outside(() -> message.getLong(Integer.MAX_VALUE));
                outside(() -> message.getInt((int) message.length() - 3));
              },
              1);
      check(got == 1, "there was one");
      refused(Status.CLOSED, () -> kept[0].getByte(0));
      refused(Status.CLOSED, () -> kept[0].bytes());
      refused(Status.CLOSED, () -> kept[0].address());
    }
    MessageRoom[] room = new MessageRoom[1];
    try (Producer producer = ring.producer("java")) {
      producer.pushMany(
          1,
          (index, here) -> {
            room[0] = here;
            refusedElsewhere(Status.CLOSED, () -> here.putInt(0, 1), threads);
            outside(() -> here.putLong(here.capacity() - 7, 1));
            return 0;
          });
      refused(Status.CLOSED, () -> room[0].putInt(0, 1));
    }
    threads.shutdown();
  }

  /** The handler and the writer may use neither their consumer nor their producer in this way. */
  private static void useAgain(Ring ring) throws Exception {
    try (Consumer consumer = join(ring);
        Producer producer = ring.producer("java")) {
      int got =
          consumer.drain(
              message -> {
                refused(Status.INVALID, () -> consumer.drain(again -> {}, 1));
                refused(Status.INVALID, consumer::close);
                refused(Status.INVALID, consumer::abandon);
                check(text(message).equals(message(0)), "it is still there");
              },
              1);
      check(got == 1, "there was one");
      producer.pushMany(
          2,
          (index, room) -> {
            refused(Status.INVALID, () -> producer.pushMany(500, (i, other) -> 300));
            refused(Status.CLAIM_OPEN, () -> producer.push(new byte[1]));
            refused(Status.INVALID, producer::close);
            return put(room, "ok");
          });
    }
  }

  /** Several threads with one consumer: each message goes to one of them. */
  private static void drainInThreads(Ring ring, int count) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(4);
    boolean[] seen = new boolean[count];
    int[] inHandler = {0};
    try (Consumer consumer = join(ring)) {
      List<Callable<Integer>> loops = new ArrayList<>();
      for (int i = 0; i < 4; i++) {
        loops.add(
            () -> {
              int got = 0;
              int more = 1;
              while (more > 0) {
                more =
                    consumer.drain(
                        message -> {
                          check(++inHandler[0] == 1, "one at a time");
                          int number = Integer.parseInt(text(message));
                          check(!seen[number], "seen twice");
                          seen[number] = true;
                          inHandler[0]--;
                        },
                        7);
                got += more;
              }
              return got;
            });
      }
      int all = 0;
      for (Future<Integer> loop : threads.invokeAll(loops)) {
        all += loop.get();
      }
      check(all == count, "all of them");
    }
    threads.shutdown();
  }

  /** A close waits for the handler; a message at which the handler throws comes again. */
  private static void closeMeanwhile(Ring ring) throws Exception {
    Consumer consumer = join(ring);
    CountDownLatch closing = new CountDownLatch(1);
    Thread closer =
        new Thread(
            () -> {
              closing.countDown();
              consumer.close();
            });
    MessageHandler handler =
        message -> {
          check(text(message).equals(message((int) message.id())), "before");
          if (message.id() == 1) {
            closer.start();
            await(closing);
            awaitBlocked(closer);
            check(text(message).equals(message(1)), "while it is being closed");
            throw new IllegalStateException("not this one");
          }
        };
    Exception expected = thrown(IllegalStateException.class, () -> consumer.drain(handler, 3));
    check(expected.getSuppressed().length == 0, "handed back");
    closer.join();
    refused(Status.CLOSED, () -> consumer.drain(message -> {}, 1));
  }

  /** The third of five is damaged: two, then the exception, then the last two. */
  private static void meetDamage(Ring ring) throws Exception {
    List<String> got = new ArrayList<>();
    try (Consumer consumer = join(ring)) {
      check(consumer.drain(message -> got.add(text(message)), 10) == 2, "those before it");
      refused(Status.DAMAGED, () -> consumer.drain(message -> got.add(text(message)), 10));
      check(consumer.drain(message -> got.add(text(message)), 10) == 2, "those behind it");
      check(consumer.drain(message -> {}, 10) == 0, "nothing is left");
    }
    check(got.equals(List.of(message(0), message(1), message(3), message(4))), got.toString());
  }

  /** A claim is aborted between a take and its read: no message comes, and none stays held. */
  private static void meetAborted(Ring ring) throws Exception {
    try (Consumer consumer = join(ring)) {
      check(consumer.drain(message -> check(false, "aborted"), 10) == 0, "there is none");
      BranchInfo branch = ring.branch("drained").orElseThrow();
      check(branch.position() == 3 && branch.released() == 3, branch.toString());
    }
  }

  /** Nothing can be handed back, as somebody stopped while recovering: closing does it. */
  private static void drainWhileStopped(Ring ring, String what) throws Exception {
    List<String> got = new ArrayList<>();
    try (Consumer consumer = join(ring)) {
      System.out.println("joined");
      System.in.read();
      MessageHandler handler =
          message -> {
            got.add(text(message));
            throw new IllegalStateException("no");
          };
      Exception error = thrown(RuntimeException.class, () -> consumer.drain(handler, 10));
      check(error.getSuppressed().length == 1, "not handed back");
      check(
          ((RingException) error.getSuppressed()[0]).status() == Status.CONTENDED, "as it is told");
      check(got.size() == (what.equals("stopped") ? 1 : 0), "of five messages");
      System.out.println("held");
      System.in.read();
    }
  }

  private static void throwInWriter(Ring ring) throws Exception {
    try (Producer producer = ring.producer("java")) {
      MessageWriter writer =
          (index, room) -> {
            if (index == 2) {
              throw new IllegalStateException("no");
            }
            return put(room, "never");
          };
      thrown(IllegalStateException.class, () -> producer.pushMany(3, writer));
      refused(Status.TOO_LARGE, () -> producer.pushMany(2, (index, room) -> 301));
      refused(Status.TOO_LARGE, () -> producer.pushMany(2, (index, room) -> -1));
      refused(Status.TOO_LARGE, () -> producer.pushMany(1 << 20, (index, room) -> 0));
      refused(Status.INVALID, () -> producer.pushMany(0, (index, room) -> 0));
      producer.pushMany(2, (index, room) -> put(room, message(index)));
      long all = ring.info().slots();
      check(
          producer.pushMany((int) all, (index, room) -> 0, Duration.ZERO).isEmpty(), "it is full");
    }
  }

  private static void refusedElsewhere(Status status, Use use, ExecutorService threads) {
    try {
      threads.submit(() -> refused(status, use)).get();
    } catch (InterruptedException | ExecutionException error) {
      throw new IllegalStateException(error);
    }
  }
}
