package io.shmring.spark.stream;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Internals;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.spark.job.RingPlace;
import io.shmring.spark.read.ReadPlan.RowPartition;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.read.RingReader;
import io.shmring.spark.stream.RingOffset.Position;
import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;

/**
 * Reads rows as they come while a real-time batch lasts. The reader has a branch of its own, on
 * which it sleeps until there is a message. Because of the stream's branch, the messages stay in
 * the ring until Spark commits them.
 */
final class RealTimeReader extends RingReader<InternalRow>
    implements SupportsRealTimeRead<InternalRow> {
  private final Position start;
  private final Consumer consumer;
  private Iterator<InternalRow> rows = Collections.emptyIterator();
  private long first; // sequence where the messages of `rows` begin
  private long end; // sequence where the messages of `rows` end
  private long read; // number of rows from `first` on that were handed out
  private long skip; // number of rows still to skip: the previous batch has handed them out

  RealTimeReader(RealTimePartition partition, ReadPlan plan) {
    super(partition.place(), plan);
    this.start = partition.start();
    this.first = start.sequence();
    this.end = start.sequence();
    BranchOptions begin = BranchOptions.at(start.sequence());
    this.consumer = closedAtEnd(ownBranch(ring, begin, "spark real-time task"));
    Internals.takeEnds(consumer); // end markers come as messages, and next() skips them
    this.skip = start.rows();
  }

  // CHANGE: edit this for a new version of Spark
  // Spark 4.1 has the first of the next two methods, 4.2 the second, and 4.3 both, so neither may
  // say @Override.

  public RecordStatus nextWithTimeout(Long timeoutMillis) throws IOException {
    return RecordStatus.newStatusWithoutArrivalTime(next(timeoutMillis));
  }

  /**
   * @param start time on the caller's clock just before the call; not used
   */
  public RecordStatus nextWithTimeout(Long start, Long timeoutMillis) throws IOException {
    return nextWithTimeout(timeoutMillis);
  }

  @Override
  public boolean next() throws IOException {
    return next(Long.MAX_VALUE);
  }

  private boolean next(long timeoutMillis) throws IOException {
    while (true) {
      while (!rows.hasNext()) {
        if (!take(timeoutMillis)) {
          return false;
        }
      }
      found = rows.next();
      read++;
      if (skip == 0) {
        return true;
      }
      skip--;
    }
  }

  private boolean take(long timeoutMillis) throws IOException {
    first = end;
    read = 0;
    Optional<Lease> taken = take(consumer, columns.messagesPerBatch(), timeoutMillis);
    if (taken.isEmpty()) {
      waited();
      return false;
    }
    try (Lease lease = taken.get()) {
      List<Message> messages = next(lease.iterator());
      end = lease.end();
      rows =
          messages.isEmpty()
              ? Collections.emptyIterator()
              : columns.copy(messages).rowIterator();
    }
    return true;
  }

  @Override
  public PartitionOffset getOffset() {
    UUID uuid = ring.info().uuid();
    if (skip > 0) {
      return new RealTimeOffset(ring.name(), start);
    }
    Position position =
        rows.hasNext() ? new Position(uuid, first, read) : new Position(uuid, end);
    return new RealTimeOffset(ring.name(), position);
  }

  @Override
  public void close() {
    consumer.close();
  }

  /** A ring that a task reads from a position on while its batch lasts. */
  record RealTimePartition(RingPlace place, Position start) implements RowPartition {
    @Override
    public PartitionReader<InternalRow> open(ReadPlan plan) {
      return new RealTimeReader(this, plan);
    }
  }

  record RealTimeOffset(String ring, Position position) implements PartitionOffset {}
}
