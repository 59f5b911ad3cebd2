package io.shmring.spark.read;

import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.job.RingPlace;
import java.util.Iterator;
import java.util.List;

/** A ring of a task that reads it: it attaches, reads columns and counts. */
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

  /** Returns the messages of the next batch, without end markers. */
  public List<Message> next(Iterator<Message> messages) {
    return metrics.take(messages, columns.messagesPerBatch());
  }

  @Override
  public void close() {
    ring.close();
  }
}
