package io.shmring.spark.read;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Internals;
import io.shmring.Lease;
import io.shmring.Message;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Takes messages from a branch until it is empty, or until the end marker.
 *
 * <p>Messages of a named branch are released when the task has succeeded, if the options want that: a
 * task that fails hands them back, and its next attempt reads all of them again.
 */
final class BatchReader extends RingReader<ColumnarBatch> {
  private static final long SLICE_MILLIS = 100;

  private final RingPartition partition;
  private final ReadOptions options;
  private final TaskContext task = TaskContext.get();
  private final Consumer consumer;
  private Consumer participant; // of a named branch, see AttemptParticipant
  private final AtomicInteger mapped = new AtomicInteger(); // leases that vectors lie over
  private final boolean untilSuccess; // leases are kept until the task has succeeded
  private final long end;
  private long left;
  private boolean finished;

  /**
   * @param ring closed at the end of the task
   */
  BatchReader(RingPartition partition, ReadOptions options, TaskRing ring) {
    super(ring);
    this.partition = partition;
    this.options = options;
    this.left = options.maxMessages();
    this.untilSuccess = options.releaseAtEnd() && !options.branch().isEmpty();
    try {
      this.consumer = join();
      Internals.takeEnds(consumer); // a task that fails hands the marker back, too
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
    this.end = options.untilEnd() ? Long.MAX_VALUE : consumer.available();
    task.addTaskCompletionListener((TaskCompletionListener) context -> leave());
  }

  private Consumer join() {
    BranchOptions branch = options.branchOptions();
    String who = "spark task " + task.taskAttemptId();
    if (options.branch().isEmpty()) {
      return new OwnBranch(ring.ring(), branch, who).consumer();
    }
    participant = new AttemptParticipant(ring.ring(), partition, options, task).take();
    try {
      Consumer joined = ring.ring().consumer(options.branch(), branch, who);
      if (partition.ends() >= 0) { // an end that another consumer has reached since is this read's, too
        Internals.hearEnds(joined, partition.ends());
      }
      return joined;
    } catch (RuntimeException error) {
      participant.close();
      throw error;
    }
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
    List<Message> messages = ring.next(lease.iterator());
    left -= messages.size();
    finished = left <= 0 || lease.end() >= end;
    if (messages.isEmpty()) { // the end marker, which is leased alone
      finished |= options.untilEnd();
      release(lease, untilSuccess);
    } else if (options.zeroCopy()) {
      mapped.incrementAndGet();
      found = ring.columns().map(messages, whenUnused(lease, mapped, untilSuccess));
    } else {
      found = ring.columns().copy(messages);
      release(lease, untilSuccess);
    }
  }

  /** Must not refer to the reader: its batch would then be in use for ever. */
  private static Runnable whenUnused(Lease lease, AtomicInteger mapped, boolean untilSuccess) {
    return () -> {
      mapped.decrementAndGet();
      release(lease, untilSuccess);
    };
  }

  private static void release(Lease lease, boolean untilSuccess) {
    if (!untilSuccess) {
      lease.close();
    }
  }

  /** Returns the next messages; empty if there are none and this read does not wait for more. */
  private Optional<Lease> take() throws IOException {
    long waited = 0;
    Backoff collections = new Backoff(SLICE_MILLIS);
    int count = (int) Math.min(ring.columns().messagesPerBatch(), left);
    try {
      while (true) {
        long left =
            options.untilEnd() ? Math.min(SLICE_MILLIS, options.timeoutMillis() - waited) : 0;
        Optional<Lease> lease;
        try {
          lease = consumer.poll(count, Long.MAX_VALUE, Duration.ofMillis(Math.max(left, 0)));
        } catch (EndOfStreamException ended) { // another consumer has reached the marker
          if (options.untilEnd()) {
            return Optional.empty();
          }
          continue;
        }
        if (lease.isPresent() || !options.untilEnd()) {
          return lease;
        }
        ring.metrics().waited();
        waited += SLICE_MILLIS;
        if (mapped.get() > 0 && collections.isDue(waited)) {
          System.gc(); // the producers may wait for batches that are garbage already
        }
        checkConnectTimeout(waited);
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("the task was interrupted while it waited for a message", error);
    }
  }

  private void checkConnectTimeout(long waited) throws IOException {
    if (task.isInterrupted()) {
      throw new IOException("the task was ended while it waited for a message");
    }
    if (waited >= options.timeoutMillis()) {
      throw new IOException(
          String.format(
              "ring \"%s\": no message and no end marker in %.1f s: %s",
              ring.ring().name(), options.timeoutMillis() / 1000.0, consumer.whyEmpty()));
    }
  }

  /** Spark closes readers of failed tasks too; only the end of the task shows whether it failed. */
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
    if (participant != null) {
      participant.close(); // last: the next attempt checks what was released
    }
    ring.close();
  }
}
