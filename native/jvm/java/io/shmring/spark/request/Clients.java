package io.shmring.spark.request;

import io.shmring.RingException;
import io.shmring.exchange.SidecarClient;
import io.shmring.exchange.WorkerRings;
import io.shmring.spark.request.Call.SidecarCall;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Predicate;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.PythonWorker;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps this executor's idle clients, and the rings of its Python workers. A client is kept from
 * task to task because a new one makes a reply ring, which takes up to 10 ms and 20 MB of fresh
 * pages. There are never more clients than tasks at one time. A client is closed if its sidecar has
 * gone, or if no task has used the client for a while. If a new client needs memory, the client
 * that was idle longest is closed first, whatever its sidecar.
 */
final class Clients {
  private static final long LOOK_MILLIS = 500;
  private static final long IDLE_NANOS = TimeUnit.SECONDS.toNanos(30);

  // CHANGE: edit this for a new option of a client
  private record Idle(String sidecar, long replySlots, SidecarClient client, long since) {
    boolean isUnwanted() {
      return System.nanoTime() - since > IDLE_NANOS || !client.isReusable();
    }
  }

  private static final ArrayDeque<Idle> IDLE = new ArrayDeque<>(); // most recently given back first
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
      sweeper.scheduleWithFixedDelay(
          () -> goOn(sweep), LOOK_MILLIS, LOOK_MILLIS, TimeUnit.MILLISECONDS);
    }
    Runtime.getRuntime().addShutdownHook(new Thread(() -> closeAll(idle -> true)));
    Runtime.getRuntime().addShutdownHook(new Thread(Clients::unlinkAllRings));
  }

  private static final Logger LOG = LoggerFactory.getLogger(Clients.class);
  private static final AtomicBoolean WITHOUT_RINGS = new AtomicBoolean();

  private Clients() {}

  /** Returns a client for the use of one task, until the task gives the client back. */
  static SidecarClient borrow(SidecarCall call, Runnable taskCheck)
      throws InterruptedException {
    for (Optional<SidecarClient> found = take(call); found.isPresent(); found = take(call)) {
      if (found.get().isReusable()) {
        return found.get();
      }
      found.get().close();
    }
    return new SidecarClient(
        call.sidecar(),
        call.replySlots(),
        () -> closeOldest(idle -> true), // frees memory for the new client's reply ring
        call.waits(),
        taskCheck);
  }

  /**
   * Closes one idle client: of the clients that `which` accepts, the client that was idle longest.
   * Returns false if `which` accepts none.
   */
  private static boolean closeOldest(Predicate<Idle> which) {
    Optional<Idle> oldest;
    synchronized (Clients.class) {
      oldest = IDLE.stream().filter(which).reduce((newer, older) -> older);
      oldest.ifPresent(IDLE::remove);
    }
    oldest.ifPresent(idle -> goOn(idle.client::close));
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

  /**
   * Keeps a client for the next task. Closes the client instead if a request is under way, or if
   * its sidecar seems dead or was restarted.
   */
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

  /**
   * Runs work that closes clients or rings, and logs an exception instead of throwing it. So the
   * caller can close the other clients and rings, and the sweeper runs again: a
   * ScheduledExecutorService never again runs a sweep that has thrown an exception.
   */
  private static void goOn(Runnable work) {
    try {
      work.run();
    } catch (RuntimeException error) {
      LOG.warn("not all idle clients and rings could be closed; the others are closed later", error);
    }
  }

  private static void closeUnwanted() {
    // Close all clients if memory is short, because another process may wait for memory.
    boolean all = SidecarClient.isMemoryShort();
    closeAll(idle -> all || idle.isUnwanted());
  }

  private static void closeAll(Predicate<Idle> which) {
    while (closeOldest(which)) {
      // Each call closes one client.
    }
  }

  // --- rings of this executor's Python workers, which Spark uses for task after task ------------

  /**
   * Returns the rings of a worker for the use of one task. Makes new rings if the worker has none,
   * or has rings that are too small. Returns empty if no rings can be made.
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
        // LinkageError: shmring's native library cannot be copied out of the jar or loaded.
        } catch (RingException | LinkageError error) {
          withoutRings(error.getMessage());
          return Optional.empty();
        }
        RINGS.put(worker, rings);
      }
      rings.enter();
      return Optional.of(rings);
    }
  }

  /** Returns the bytes of the rings of all Python workers. */
  static long ringBytes() {
    synchronized (RINGS) {
      return RINGS.values().stream().mapToLong(WorkerRings::bytes).sum();
    }
  }

  /** Logs once, with the reason, that batches go over sockets. */
  static void withoutRings(String why) {
    if (!WITHOUT_RINGS.getAndSet(true)) {
      LOG.warn(
          "batches of Python functions go over Spark's own sockets, which is slower, where no rings"
              + " can be made ({})",
          why);
    }
  }

  /** Closes rings whose worker Spark has closed, and rings that no task has used for a while. */
  private static void closeUnusedRings() {
    synchronized (RINGS) {
      for (Map.Entry<PythonWorker, WorkerRings> each : List.copyOf(RINGS.entrySet())) {
        if (!each.getKey().channel().isOpen() || each.getValue().isIdle()) {
          RINGS.remove(each.getKey()).close();
        }
      }
    }
  }

  /**
   * Removes the files of the rings whose workers have not done so. The rings stay open, because
   * tasks may still use them while the JVM ends.
   */
  private static void unlinkAllRings() {
    synchronized (RINGS) {
      RINGS.values().forEach(WorkerRings::unlink);
    }
  }
}
