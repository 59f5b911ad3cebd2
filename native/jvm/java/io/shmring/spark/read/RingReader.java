package io.shmring.spark.read;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

/**
 * A task's reader of a ring: the result of next(), and the counters.
 *
 * @param <T> columns of several messages, or one row
 */
public abstract class RingReader<T> implements PartitionReader<T> {
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
