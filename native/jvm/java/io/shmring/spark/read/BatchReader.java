package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Internals;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingPlace.TaskWait;
import io.shmring.spark.read.RingReads.RingPartition;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Takes messages from a branch until it is empty, or until the end marker.
 *
 * <p>If the options say so, messages of a named branch are released when the task has succeeded: a
 * task that fails hands the messages back, and its next attempt reads all of them again.
 */
final class BatchReader extends RingReader<ColumnarBatch> {
  private static final Logger LOG = LoggerFactory.getLogger(BatchReader.class);
  private static final BranchOptions TURN =
      BranchOptions.LATEST.asExclusive().asEphemeral().asDropOldest();
  private static final Duration UNTIL_SPARK_KILLS = Duration.ofSeconds(10);
  private static final long SLICE_MILLIS = 100;

  // Errors of reads that timed out, by the read's identity. The attempt that timed out may have
  // released messages; a later attempt cannot read these again, and raises the same error.
  private static final Map<String, String> TIMED_OUT = new ConcurrentHashMap<>();

  private final RingPartition partition;
  private final ReadOptions options;
  private final Consumer consumer;
  private boolean hasAwaitedTurn;
  // Number of leases whose messages are used by vectors.
  private final AtomicInteger mapped = new AtomicInteger();
  private final boolean untilSuccess; // whether leases are kept until the task has succeeded
  private final long end;
  private long left;
  private boolean finished;

  BatchReader(RingPartition partition, ReadPlan plan) {
    super(partition.place(), plan);
    this.partition = partition;
    this.options = plan.options();
    this.left = options.maxMessages();
    this.untilSuccess = options.releaseAtEnd() && !options.branch().isEmpty();
    this.consumer = join();
    Internals.takeEnds(consumer); // takes the end marker too, so that a failed task hands it back
    this.end = options.untilEnd() ? Long.MAX_VALUE : consumer.available();
    task.addTaskCompletionListener((TaskCompletionListener) context -> leave());
  }

  private Consumer join() {
    BranchOptions branch = options.branchOptions();
    String who = "spark task " + task.taskAttemptId();
    if (options.branch().isEmpty()) {
      return ownBranch(ring, branch, who);
    }
    takeTurn();
    // The branch is missing only if the option `hosts` is set: without it, the driver has made the
    // branch when it planned the read.
    RingReads.reportNew(ring, options.branch());
    Consumer joined = ring.consumer(options.branch(), branch, who);
    // An end marker that another consumer has reached since the plan was made ends this read too.
    if (partition.ends() >= 0) {
      Internals.hearEnds(joined, partition.ends());
    }
    return joined;
  }

  @Override
  public boolean next() throws IOException {
    found = null;
    while (!finished && found == null) {
      Optional<Lease> lease = take();
      if (lease.isEmpty()) {
        finished = true;
      } else {
        read(lease.get());
      }
    }
    return found != null;
  }

  private void read(Lease lease) {
    List<Message> messages = next(lease.iterator());
    left -= messages.size();
    finished = left <= 0 || lease.end() >= end;
    // The actions of a mapped batch must not refer to this reader: the reader refers to the batch, and
    // would keep the batch in use for ever.
    AtomicInteger inUse = mapped;
    Runnable release = untilSuccess ? () -> {} : lease::close;
    if (messages.isEmpty()) { // the lease has only the end marker
      finished |= options.untilEnd();
      release.run();
    } else if (options.zeroCopy()) {
      inUse.incrementAndGet();
      found =
          columns.map(
              messages,
              () -> {
                inUse.decrementAndGet();
                release.run();
              });
    } else {
      found = columns.copy(messages);
      release.run();
    }
  }

  /** Returns the next messages; empty if there are none and the read does not wait for more. */
  private Optional<Lease> take() throws IOException {
    long waited = 0;
    int count = (int) Math.min(columns.messagesPerBatch(), left);
    while (true) {
      long left =
          options.untilEnd() ? Math.min(SLICE_MILLIS, options.timeoutMillis() - waited) : 0;
      Optional<Lease> lease;
      // CHANGE: edit this for a new error
      try {
        lease = take(consumer, count, Math.max(left, 0));
      } catch (EndOfStreamException ended) { // another consumer has reached the end marker
        if (options.untilEnd()) {
          return Optional.empty();
        }
        continue;
      }
      if (lease.isPresent() || !options.untilEnd()) {
        return lease;
      }
      waited();
      waited += SLICE_MILLIS;
      if (mapped.get() > 0 && isCollectionDue(waited)) {
        System.gc(); // gives back the slots of unused batches: producers may wait for these slots
      }
      checkConnectTimeout(waited);
    }
  }

  /**
   * Returns whether a garbage collection is due. Because a collection costs much, the time to the
   * next one doubles.
   */
  static boolean isCollectionDue(long waited) {
    return Long.bitCount(waited / SLICE_MILLIS) == 1;
  }

  private void checkConnectTimeout(long waited) throws IOException {
    if (task.isInterrupted()) {
      throw new IOException("the task was ended while it waited for a message");
    }
    if (waited >= options.timeoutMillis()) {
      String why =
          String.format(
              "ring \"%s\": no message and no end marker in %.1f s: %s",
              ring.name(), options.timeoutMillis() / 1000.0, consumer.whyEmpty());
      TIMED_OUT.put(partition.read(), why);
      throw new IOException(why);
    }
  }

  /**
   * Ends the reading, but does not leave the branch: {@link #leave} does so at the end of the task,
   * when it is known whether the task failed. Spark closes readers of failed tasks too.
   */
  @Override
  public void close() {
    finished = true;
  }

  private void leave() {
    if (untilSuccess && (task.isFailed() || task.isInterrupted())) {
      consumer.abandon();
    } else {
      consumer.close();
    }
  }

  /**
   * Takes the lock of a read, which one attempt has at a time, and waits while another attempt has
   * it. If the other attempt succeeds, Spark ends this attempt; if it fails, its messages can be
   * read again. Two attempts can run at a time if one is speculative, or was started because Spark
   * had lost the other one. Without the lock they would share the branch's messages, and each
   * attempt would miss some.
   *
   * <p>The lock is an exclusive branch, from which no attempt reads. The ring lets only one attempt
   * at a time join the branch, also among several processes, and takes the attempt off the branch
   * when its process dies.
   *
   * @throws IllegalStateException if some of this read's messages were released before
   */
  private void takeTurn() {
    // The task closes the lock after the consumer, because it closes first what was opened last. So
    // when the next attempt gets the lock, this attempt's consumer has released its last messages,
    // and the next attempt's isIncomplete() notices these messages.
    closedAtEnd(awaitTurn());
    if (isIncomplete()) {
      String timedOut = TIMED_OUT.get(partition.read());
      if (timedOut != null) { // repeat the reason: Spark shows the error of the last attempt
        throw new IllegalStateException(timedOut);
      }
      awaitKill();
      throw incomplete();
    }
  }

  private Consumer awaitTurn() {
    while (true) {
      try {
        return ring.consumer(
            "spark-read-" + partition.read(), TURN, "spark attempt " + task.taskAttemptId());
      } catch (RingException error) {
        if (error.status() != Status.SECOND_CONSUMER) {
          throw error;
        }
      }
      if (!hasAwaitedTurn) {
        LOG.info(
            "ring \"{}\": another attempt of this task reads branch \"{}\"; waiting for its end",
            ring.name(),
            options.branch());
      }
      hasAwaitedTurn = true;
      TaskWait.pause(task);
    }
  }

  /**
   * Returns whether an earlier attempt has released messages, which cannot be read again. If the
   * branch's position before that attempt is unknown, returns whether it may have released some.
   */
  private boolean isIncomplete() {
    if (partition.launch() == 1) {
      return false;
    }
    if (partition.released() >= 0) {
      return released() > partition.released();
    }
    return isRunAgain() || !options.releaseAtEnd();
  }

  /**
   * If another attempt may have succeeded, gives Spark some seconds to end this attempt for that
   * reason. Spark does not count an attempt that it has ended itself as a failure.
   */
  private void awaitKill() {
    if (hasAwaitedTurn || (task.attemptNumber() > 0 && !isRunAgain())) {
      TaskWait.sleep(task, UNTIL_SPARK_KILLS);
    }
  }

  /**
   * Returns whether an earlier stage of a Spark job, in this plan or in another one, has begun this
   * read: true if the number of the read's attempts is greater than the number of attempts of this
   * stage's task.
   */
  private boolean isRunAgain() {
    return partition.launch() > task.attemptNumber() + 1;
  }

  private IllegalStateException incomplete() {
    String moved =
        partition.released() < 0
            ? "may have moved on"
            : String.format("has moved on from %d to %d", partition.released(), released());
    return new IllegalStateException(
        String.format(
            "ring \"%s\": branch \"%s\" %s since this DataFrame was first run, and this is"
                + " attempt %d:"
                + " rows would be missing from its result. %s%s",
            ring.name(),
            options.branch(),
            moved,
            partition.launch(),
            RingReads.WAYS_OUT,
            options.releaseAtEnd() ? "" : ", or read it with .option(\"release\", \"task\")"));
  }

  private long released() {
    return ring.branch(options.branch()).map(BranchInfo::released).orElse(Long.MAX_VALUE);
  }
}
