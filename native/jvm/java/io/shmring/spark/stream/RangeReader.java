package io.shmring.spark.stream;

import io.shmring.Message;
import io.shmring.Range;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.read.ReadMetrics;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads messages that the stream's branch holds, or for want of that this one, and takes none. */
final class RangeReader implements PartitionReader<ColumnarBatch> {
  private final ReadMetrics metrics = new ReadMetrics();
  private final Ring ring;
  private final Optional<Hold> hold; // where the stream's branch does not hold the messages
  private final Range range;
  private final RingColumns columns;
  private final Iterator<Message> messages;
  private final boolean zeroCopy;
  private ColumnarBatch batch;

  RangeReader(RangePartition partition, RangeReaderFactory factory) {
    this.ring = partition.place().attach(factory.hostWaitMillis());
    this.zeroCopy = factory.zeroCopy() && !partition.mayLapse(); // vectors may outlive the task
    try {
      this.columns = RingColumns.of(ring, factory.schema(), factory.columns());
      this.hold = partition.mayLapse() ? Optional.of(hold(partition)) : Optional.empty();
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
    try {
      long first = hold.map(Hold::first).orElse(partition.first());
      checkFirst(first, partition, factory);
      this.range = ring.range(first, Math.max(first, partition.end()));
      this.messages = range.iterator();
    } catch (RuntimeException error) {
      hold.ifPresent(Hold::close);
      ring.close();
      throw error;
    }
  }

  private Hold hold(RangePartition partition) {
    return new Hold(ring, partition.first(), "spark task " + TaskContext.get().taskAttemptId());
  }

  /** What lies before `first` was overwritten since it was planned. */
  private void checkFirst(long first, RangePartition partition, RangeReaderFactory factory) {
    if (first > partition.first() && factory.failOnDataLoss()) {
      throw new RingException(
          Status.LAPSED,
          String.format(
              "ring \"%s\": the messages %d to %d are gone: the stream's branch may lapse. Go on"
                  + " behind the gap with .option(\"failOnDataLoss\", \"false\")",
              ring.name(), partition.first(), first - 1));
    }
  }

  @Override
  public boolean next() {
    List<Message> taken = new ArrayList<>();
    long bytes = 0;
    while (taken.size() < columns.messagesPerBatch() && messages.hasNext()) {
      Message message = messages.next();
      if (!message.isEnd()) {
        taken.add(message);
        bytes += message.length();
      }
    }
    if (taken.isEmpty()) {
      return false;
    }
    batch = zeroCopy ? columns.map(taken, () -> {}) : columns.copy(taken);
    range.confirm(taken.get(0).id());
    metrics.count(taken.size(), bytes);
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return metrics.values();
  }

  @Override
  public void close() {
    range.close();
    hold.ifPresent(Hold::close);
    ring.close();
  }
}
