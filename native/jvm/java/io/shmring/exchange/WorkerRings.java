package io.shmring.exchange;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import java.io.File;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The two rings of one of Spark's Python workers: one for requests, one for answers. The rings live
 * as long as the worker, or until no task has used them for some seconds: then this process closes
 * them, and the idle worker, which looks once a second, closes its side too. The worker removes the
 * rings' names as soon as it has attached to them. If this process is killed before that, the
 * executor's daemon of Python workers removes the names; if that daemon is killed too, the next
 * daemon that starts on this host removes them.
 */
public final class WorkerRings implements AutoCloseable {
  private static final String WORKER = "worker";

  private static final Logger LOG = LoggerFactory.getLogger(WorkerRings.class);
  private static final AtomicBoolean WARNED = new AtomicBoolean();
  // A ring gets room for this many messages of the largest size so far, if there is memory.
  private static final int MESSAGES = 8;
  // Time without a task after which rings are closed.
  private static final long IDLE_NANOS = TimeUnit.SECONDS.toNanos(3);

  private final Ring requests;
  private final Ring answers;
  private final long slots; // slots of each ring
  private final AtomicInteger tasks = new AtomicInteger(); // tasks that use the rings
  private volatile long leftAt; // System.nanoTime() when a task last left the rings
  final Producer producer;
  final Consumer consumer;

  private WorkerRings(Ring requests, Ring answers) {
    this.requests = requests;
    this.answers = answers;
    this.slots = requests.info().slots();
    requests.subscribe(WORKER, BranchOptions.EARLIEST);
    this.producer = requests.producer("task"); // exchange.py looks for this name
    this.consumer = answers.consumer("task", BranchOptions.EARLIEST.asExclusive(), "task");
  }

  /**
   * Makes rings, with fewer slots if memory is short.
   *
   * @param bytes size of a request in bytes
   * @param folder a folder for the rings' files if shared memory has no room for them
   * @throws RingException if the folder has no room for the rings either
   */
  public static WorkerRings make(long bytes, Path folder) {
    String why = "no room";
    try {
      Optional<WorkerRings> made =
          ReplyRing.largest(ReplyRing.LEAST_SLOTS, wished(bytes), slots -> make(slots, ""));
      if (made.isPresent()) {
        return made.get();
      }
    } catch (RingException error) { // for example, /dev/shm is missing or read-only
      why = error.getMessage();
    }
    WorkerRings files = make(ReplyRing.LEAST_SLOTS, folder + "/");
    if (WARNED.compareAndSet(false, true)) {
      LOG.warn(
          "the rings of Python workers are files in {}, which is slower than /dev/shm ({}): give"
              + " /dev/shm more room (docker run --shm-size=1g; in Kubernetes an emptyDir of medium"
              + " Memory)",
          folder, why);
    }
    return files;
  }

  private static WorkerRings make(long slots, String place) {
    String name =
        String.format(
            "%sworker.%d-%s", place, ProcessHandle.current().pid(), UUID.randomUUID());
    Ring requests = Ring.createTemporary(name + ".requests", slots);
    try {
      Ring answers = Ring.createTemporary(name + ".answers", slots);
      try {
        return new WorkerRings(requests, answers);
      } catch (RuntimeException error) {
        answers.close();
        throw error;
      }
    } catch (RuntimeException error) {
      requests.close();
      throw error;
    }
  }

  private static long wished(long bytes) {
    return ReplyRing.fitting(MESSAGES * (bytes / Ring.SLOT_BYTES + 2));
  }

  /** Returns whether these rings are at least as large as new rings for requests of this size. */
  public boolean fits(long bytes) {
    return slots >= wished(bytes);
  }

  /**
   * Counts a task that uses the rings, until the task's WorkerClient is closed. Until then the
   * rings are not idle.
   */
  public void enter() {
    tasks.incrementAndGet();
  }

  void leave() {
    leftAt = System.nanoTime();
    tasks.decrementAndGet();
  }

  /** Returns whether no task has used the rings for some seconds. */
  public boolean isIdle() {
    return tasks.get() == 0 && System.nanoTime() - leftAt > IDLE_NANOS;
  }

  /** Returns the paths of both rings, for the worker to attach. */
  public List<String> paths() {
    return List.of(requests.path().toString(), answers.path().toString());
  }

  /**
   * Removes the rings' files, which still exist if the worker has not attached to the rings.
   * Processes that already use the rings can go on.
   */
  public void unlink() {
    paths().forEach(path -> new File(path).delete());
  }

  /** Returns the bytes that the slots and their control data take in both rings' files. */
  public long bytes() {
    return 2 * slots * ReplyRing.SLOT_COST;
  }

  /** Returns the maximum bytes of a message: 1/4 of the ring, so that several messages fit. */
  long mostBytes() {
    return slots * Ring.SLOT_BYTES / 4;
  }

  @Override
  public void close() {
    producer.close();
    requests.close();
    consumer.close();
    answers.close();
  }
}
