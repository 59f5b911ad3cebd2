package io.shmring.spark.stream;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Internals;
import io.shmring.Message;
import io.shmring.Range;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.ReadPlan.ColumnarPartition;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.RingReader;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads messages without taking them. The stream's branch keeps producers from overwriting the
 * messages, unless the branch drops its oldest messages: then the reader makes a branch of its own
 * to keep them.
 */
final class RangeReader extends RingReader<ColumnarBatch> {
  // The reader's own branch, if the stream's branch drops its oldest messages; else empty.
  private final Optional<Consumer> own;
  private final Range range;
  private final Iterator<Message> messages;
  private final boolean zeroCopy;

  RangeReader(RangePartition partition, ReadPlan plan) {
    super(partition.place(), plan);
    ReadOptions options = plan.options();
    // Copy messages that only this reader's own branch keeps in the ring: the branch ends with the
    // task, and vectors that read the ring in place may outlive the task.
    this.zeroCopy = options.zeroCopy() && !partition.dropOldest();
    this.own = partition.dropOldest() ? Optional.of(own(partition.first())) : Optional.empty();
    long first = own.map(Internals::position).orElse(partition.first());
    checkFirst(first, partition, options);
    this.range = closedAtEnd(ring.range(first, Math.max(first, partition.end())));
    this.messages = range.iterator();
  }

  private Consumer own(long from) {
    String who = "spark task " + task.taskAttemptId();
    return closedAtEnd(ownBranch(ring, BranchOptions.at(from), who));
  }

  /**
   * Throws if messages were overwritten since the batch was planned, unless the options allow gaps.
   */
  private void checkFirst(long first, RangePartition partition, ReadOptions options) {
    if (first > partition.first() && options.failOnDataLoss()) {
      throw new RingException(
          Status.OVERRUN,
          "ring \"%s\": the messages %d to %d are gone: the stream's branch drops the oldest. Go"
              + " on behind the gap with .option(\"failOnDataLoss\", \"false\")",
          ring.name(), partition.first(), first - 1);
    }
  }

  @Override
  public boolean next() {
    List<Message> read = next(messages);
    if (read.isEmpty()) {
      return false;
    }
    found = zeroCopy ? columns.map(read, () -> {}) : columns.copy(read);
    range.confirm(read.get(0).id());
    return true;
  }

  /**
   * Leaves the ring at the end of the messages, so that producers need not wait until the task has
   * ended.
   */
  @Override
  public void close() {
    range.close();
    own.ifPresent(Consumer::close);
  }

  /**
   * The messages of one ring in a micro-batch.
   *
   * @param place the ring, on the driver's host
   * @param dropOldest whether the stream's branch may lose the messages because it drops the oldest
   *     ones
   */
  record RangePartition(RingPlace place, long first, long end, boolean dropOldest)
      implements ColumnarPartition {
    @Override
    public PartitionReader<ColumnarBatch> open(ReadPlan plan) {
      return new RangeReader(this, plan);
    }
  }
}
