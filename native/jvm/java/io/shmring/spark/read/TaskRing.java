package io.shmring.spark.read;

import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.job.RingPlace;
import java.util.Iterator;
import java.util.List;

/** A ring as a task reads it: attached to, seen as columns, and counted what was read. */
public final class TaskRing implements AutoCloseable {
  private final ReadMetrics metrics = new ReadMetrics();
  private final Ring ring;
  private final RingColumns columns;

  public TaskRing(RingPlace place, ReadPlan plan) {
    ring = place.attach(plan.options().hostWaitMillis());
    try {
      columns = RingColumns.of(ring, plan.schema(), plan.columns());
    } catch (RuntimeException error) {
      ring.close();
      throw error;
    }
  }

  public Ring ring() {
    return ring;
  }

  public RingColumns columns() {
    return columns;
  }

  public ReadMetrics metrics() {
    return metrics;
  }

  /** The messages of the next batch; end markers are stepped over. */
  public List<Message> next(Iterator<Message> messages) {
    return metrics.take(messages, columns.messagesPerBatch());
  }

  @Override
  public void close() {
    ring.close();
  }
}
