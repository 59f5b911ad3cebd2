package io.shmring.spark.request;

import io.shmring.RingException;
import io.shmring.sidecar.SidecarClient;
import io.shmring.sidecar.WorkerRings;
import io.shmring.spark.request.Call.SidecarCall;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonWorker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The clients of this executor that no task uses just now, and the rings of its Python workers. One
 * client is kept from task to task, as its reply ring costs up to 10 ms and 20 MB of fresh pages; there
 * are never more than tasks at one time. A client whose sidecar has gone, or that nobody has wanted for
 * a while, goes too; where memory is wanted, of whichever sidecar, the one that has waited longest goes
 * first.
 */
final class Clients {
  private static final long LOOK_MILLIS = 500;
  private static final long IDLE_NANOS = TimeUnit.SECONDS.toNanos(30);

  private record Idle(String sidecar, long replySlots, SidecarClient client, long since) {
    boolean isUnwanted() {
      return System.nanoTime() - since > IDLE_NANOS || !client.isReusable();
    }
  }

  private static final ArrayDeque<Idle> IDLE = new ArrayDeque<>(); // the last that came first
  private static final Map<PythonWorker, WorkerRings> RINGS = new IdentityHashMap<>();

  static {
    ScheduledExecutorService sweeper =
        Executors.newSingleThreadScheduledExecutor(
            work -> {
              Thread thread = new Thread(work, "shmring-sweeper");
              thread.setDaemon(true);
              return thread;
            });
    for (Runnable sweep : List.<Runnable>of(Clients::closeUnwanted, Clients::closeUnusedRings)) {
      sweeper.scheduleWithFixedDelay(sweep, LOOK_MILLIS, LOOK_MILLIS, TimeUnit.MILLISECONDS);
    }
    Runtime.getRuntime().addShutdownHook(new Thread(() -> closeAll(idle -> true)));
    Runtime.getRuntime().addShutdownHook(new Thread(Clients::unlinkAllRings));
  }

  private static final Logger LOG = LoggerFactory.getLogger(Clients.class);
  private static final AtomicBoolean WITHOUT_RINGS = new AtomicBoolean();

  private Clients() {}

  /** A client that this task has for itself until it gives that back. */
  static SidecarClient borrow(SidecarCall call, Runnable taskCheck)
      throws InterruptedException {
    for (Optional<SidecarClient> found = take(call); found.isPresent(); found = take(call)) {
      if (found.get().isReusable()) {
        return found.get();
      }
      found.get().close();
    }
    return new SidecarClient(
        call.sidecar(), call.replySlots(), Clients::closeOldest, call.waits(), taskCheck);
  }

  /** Gives back the memory of the client that nobody has wanted for longest. */
  private static boolean closeOldest() {
    Optional<Idle> oldest;
    synchronized (Clients.class) {
      oldest = Optional.ofNullable(IDLE.pollLast());
    }
    oldest.ifPresent(idle -> idle.client.close());
    return oldest.isPresent();
  }

  private static synchronized Optional<SidecarClient> take(SidecarCall call) {
    Optional<Idle> found =
        IDLE.stream()
            .filter(
                idle ->
                    idle.sidecar.equals(call.sidecar()) && idle.replySlots == call.replySlots())
            .findFirst();
    found.ifPresent(IDLE::remove);
    return found.map(Idle::client);
  }

  /** Keeps a client for the next task, or closes one with requests under way: their answers are late. */
  static void giveBack(SidecarCall call, SidecarClient client) {
    if (!client.isReusable()) {
      client.close();
      return;
    }
    client.end();
    synchronized (Clients.class) {
      IDLE.push(new Idle(call.sidecar(), call.replySlots(), client, System.nanoTime()));
    }
  }

  private static void closeUnwanted() {
    boolean all = SidecarClient.isMemoryShort(); // another process may wait for it
    closeAll(idle -> all || idle.isUnwanted());
  }

  private static void closeAll(Predicate<Idle> which) {
    List<Idle> closed;
    synchronized (Clients.class) {
      closed = IDLE.stream().filter(which).toList();
      IDLE.removeAll(closed);
    }
    closed.forEach(idle -> idle.client.close());
  }

  // --- rings of this executor's Python workers, which Spark uses for task after task ------------

  /**
   * Returns the rings of a worker, new ones if it has none or they are small; empty if none can be made.
   *
   * @param bytes the bytes of a request
   */
  static Optional<WorkerRings> ringsOf(PythonWorker worker, long bytes) {
    synchronized (RINGS) {
      WorkerRings rings = RINGS.get(worker);
      if (rings == null || !rings.fits(bytes)) {
        if (rings != null) {
          RINGS.remove(worker).close();
        }
        String folder = SparkEnv.get().blockManager().diskBlockManager().localDirs()[0].toString();
        try {
          rings = WorkerRings.make(bytes, Path.of(folder));
        } catch (RingException | LinkageError error) { // no JVM may write the library to a file
          withoutRings(error.getMessage());
          return Optional.empty();
        }
        RINGS.put(worker, rings);
      }
      return Optional.of(rings);
    }
  }

  /** Lets the log say once that batches go over sockets. */
  static void withoutRings(String why) {
    if (!WITHOUT_RINGS.getAndSet(true)) {
      LOG.warn(
          "batches of Python functions go over Spark's own sockets, which is slower, where no rings"
              + " can be made ({})",
          why);
    }
  }

  /** Those whose worker Spark has given up. */
  private static void closeUnusedRings() {
    synchronized (RINGS) {
      for (PythonWorker worker : List.copyOf(RINGS.keySet())) {
        if (!worker.channel().isOpen()) {
          RINGS.remove(worker).close();
        }
      }
    }
  }

  /** The process ends while tasks may still use the rings: only files that no worker has removed go. */
  private static void unlinkAllRings() {
    synchronized (RINGS) {
      RINGS.values().forEach(WorkerRings::unlink);
    }
  }
}
