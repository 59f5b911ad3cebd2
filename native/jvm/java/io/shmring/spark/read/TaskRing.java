package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.job.RingPlace;
import java.util.Iterator;
import java.util.List;
import java.util.UUID;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

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

  /**
   * A task's reader of a ring: the result of next(), and the counters.
   *
   * @param <T> columns of several messages, or one row
   */
  public static abstract class RingReader<T> implements PartitionReader<T> {
    protected final TaskRing ring;
    protected T found;

    protected RingReader(TaskRing ring) {
      this.ring = ring;
    }

    @Override
    public final T get() {
      return found;
    }

    @Override
    public final CustomTaskMetric[] currentMetricsValues() {
      return ring.metrics().values();
    }
  }

  /**
   * A branch that one reader makes for itself; it is dropped with the reader, and nobody else joins
   * it.
   */
  public static final class OwnBranch implements AutoCloseable {
    private final String name = "spark-" + UUID.randomUUID();
    private final Ring ring;
    private final Consumer consumer;

    /**
     * @param start the branch holds messages from there on, except those that are overwritten
     *     already
     */
    public OwnBranch(Ring ring, BranchOptions start, String who) {
      this.ring = ring;
      this.consumer = ring.consumer(name, start.asExclusive().asEphemeral(), who);
    }

    /** Its only consumer. */
    public Consumer consumer() {
      return consumer;
    }

    /** The first sequence that it holds. */
    public long first() {
      return ring.branch(name).map(BranchInfo::position).orElseThrow();
    }

    @Override
    public void close() {
      consumer.close();
    }
  }
}
