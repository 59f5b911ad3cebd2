import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Lease;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.Status;
import io.shmring.arrow.ArrowConsumer;
import io.shmring.arrow.ArrowProducer;
import io.shmring.arrow.RingSchema;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/** One side of a pair: `produce|consume bytes|arrow RING COUNT`; or `aside|runs|close|drop bytes RING
 * COUNT`. */
public final class Peer extends Checks {
  private static final int ROWS = 100;

  private Peer() {}

  public static void main(String[] arguments) throws Exception {
    int count = Integer.parseInt(arguments[3]);
    try (Ring ring = Ring.attach(arguments[2]);
        BufferAllocator allocator = new RootAllocator()) {
      switch (arguments[0] + " " + arguments[1]) {
        case "produce bytes" -> produce(ring, count);
        case "consume bytes" -> consume(ring, count);
        case "produce arrow" -> produceArrow(ring, count, allocator);
        case "consume arrow" -> consumeArrow(ring, count, allocator);
        case "aside bytes" -> setAside(ring, count);
        case "runs bytes" -> takeRuns(ring, count);
        case "close bytes" -> closeWaited(ring, count);
        case "drop bytes" -> drop(ring, count);
        default -> throw new IllegalArgumentException(arguments[0]);
      }
      check(allocator.getAllocatedMemory() == 0, "memory stays allocated");
    }
  }

  private static void produce(Ring ring, int count) throws Exception {
    try (Producer producer = ring.producer("java")) {
      for (int i = 0; i < count; i++) {
        producer.push(bytes(message(i)));
      }
      producer.end();
    }
  }

  private static void consume(Ring ring, int count) throws Exception {
    try (Consumer consumer = ring.consumer("pair", BranchOptions.EARLIEST)) {
      for (int i = 0; i < count; i++) {
        try (Lease lease = consumer.poll(PATIENCE).orElseThrow()) {
          check(text(lease.message().bytes()).equals(message(i)), "message " + i);
        }
      }
      checkEnd(consumer);
    }
  }

  /** Hands back what it takes first, as often as may be; takes what is behind it, in each way. */
  private static void setAside(Ring ring, int count) throws Exception {
    String dead = ring.name() + ".dead";
    try (Consumer consumer = ring.consumer("pair", BranchOptions.EARLIEST)) {
      refused(Status.INVALID, () -> consumer.setAside(count, ring.name()));
      consumer.setAside(count, dead);
      for (int deliveries = 1; deliveries <= count; deliveries++) {
        Lease lease = consumer.poll(PATIENCE).orElseThrow();
        check(lease.first() == 0 && lease.deliveries() == deliveries, "counted");
        check(lease.redelivered() == deliveries > 1, "delivered again");
        lease.nack();
        refused(Status.CLOSED, lease::nack);
      }
      consumer.drain(message -> check(message.id() == 1, "the second"), 1);
    }
    try (Consumer consumer = ring.consumer("pair", BranchOptions.EARLIEST).setAside(1, dead)) {
      consumer.take().nack();
      try (Lease lease = consumer.take()) {
        check(lease.first() == 3, "the last");
      }
    }
  }

  /** Takes two runs with so many consumers, each in a thread; a line for what each run had. */
  private static void takeRuns(Ring ring, int count) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(count);
    List<Consumer> consumers = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      consumers.add(ring.consumer("pair", BranchOptions.EARLIEST));
    }
    System.out.println("ready");
    for (int run = 0; run < 2; run++) {
      List<Callable<String>> loops = new ArrayList<>();
      for (Consumer consumer : consumers) {
        loops.add(() -> takeRun(consumer));
      }
      StringBuilder line = new StringBuilder();
      for (Future<String> loop : threads.invokeAll(loops)) {
        line.append(loop.get());
      }
      System.out.println(line);
    }
    for (Consumer consumer : consumers) {
      check(consumer.poll(Duration.ZERO).isEmpty(), "nothing is left");
      consumer.close();
    }
    threads.shutdown();
  }

  /** Closes so many producers of a full ring and consumers without a message, while threads wait. */
  private static void closeWaited(Ring ring, int count) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(2 * count);
    List<AutoCloseable> participants = new ArrayList<>();
    List<Future<Status>> ends = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      Consumer consumer = ring.consumer("pair", BranchOptions.LATEST);
      Producer producer = ring.producer("java");
      participants.addAll(List.of(consumer, producer));
      ends.add(threads.submit(() -> refusalOf(consumer::take)));
      ends.add(threads.submit(() -> refusalOf(() -> producer.push(bytes(message(0))))));
    }
    for (AutoCloseable participant : participants) {
      participant.close();
      participant.close();
    }
    for (Future<Status> end : ends) {
      check(end.get() == Status.CLOSED, "closed while it waits");
    }
    threads.shutdown();
  }

  /** Drops a branch that holds a full ring, and one on which so many threads wait. */
  private static void drop(Ring ring, int count) throws Exception {
    ring.dropBranch("holds");
    check(ring.branch("holds").isEmpty(), "dropped");
    refused(Status.NO_BRANCH, () -> ring.dropBranch("holds"));
    ExecutorService threads = Executors.newFixedThreadPool(count);
    List<Consumer> consumers = new ArrayList<>();
    List<Future<Status>> ends = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      Consumer consumer = ring.consumer("pair", BranchOptions.LATEST);
      consumers.add(consumer);
      ends.add(threads.submit(() -> refusalOf(consumer::take)));
    }
    ring.dropBranch("pair");
    for (Future<Status> end : ends) {
      check(end.get() == Status.DROPPED, "the waiting are told");
    }
    for (Consumer consumer : consumers) {
      consumer.close();
    }
    threads.shutdown();
  }

  private static String takeRun(Consumer consumer) throws InterruptedException {
    StringBuilder got = new StringBuilder();
    while (true) {
      try (Lease lease = consumer.take()) {
        got.append(text(lease.message().bytes())).append(' ');
      } catch (EndOfStreamException end) {
        return got.toString();
      }
    }
  }

  private static void checkEnd(Consumer consumer) {
    thrown(EndOfStreamException.class, () -> consumer.poll(PATIENCE).orElseThrow());
  }

  /** Batch k has the rows (k * 100 + i, "s" + i), where every tenth text is null. */
  private static void produceArrow(Ring ring, int count, BufferAllocator allocator)
      throws Exception {
    try (VectorSchemaRoot root =
            VectorSchemaRoot.create(RingSchema.of(ring).orElseThrow().stored(), allocator);
        ArrowProducer producer = new ArrowProducer(ring, "java")) {
      BigIntVector number = (BigIntVector) root.getVector("number");
      VarCharVector text = (VarCharVector) root.getVector("text");
      for (int k = 0; k < count; k++) {
        for (int i = 0; i < ROWS; i++) {
          number.setSafe(i, k * (long) ROWS + i);
          text.setSafe(i, bytes("s" + i));
          if (i % 10 == 0) {
            text.setNull(i);
          }
        }
        root.setRowCount(ROWS);
        producer.write(root, PATIENCE).orElseThrow();
      }
      producer.end();
    }
  }

  private static void consumeArrow(Ring ring, int count, BufferAllocator allocator)
      throws Exception {
    try (ArrowConsumer consumer =
        new ArrowConsumer(ring, "pair", BranchOptions.EARLIEST, allocator)) {
      for (int k = 0; k < count; k++) {
        VectorSchemaRoot root = consumer.read(PATIENCE).orElseThrow();
        check(root.getRowCount() == ROWS, "rows of batch " + k);
        for (int i = 0; i < ROWS; i++) {
          Object text = root.getVector("text").getObject(i);
          check(root.getVector("number").getObject(i).equals(k * (long) ROWS + i), "number " + i);
          check(i % 10 == 0 ? text == null : text.toString().equals("s" + i), "text " + i);
        }
      }
      Optional<VectorSchemaRoot> none = consumer.read(PATIENCE);
      check(none.isEmpty() && consumer.ended(), "the end comes last");
    }
  }
}
