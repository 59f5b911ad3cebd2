package io.shmring.spark.job;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/**
 * A number for Spark's UI, summed up over the tasks. Spark creates each metric from the name of its
 * class.
 */
public abstract class RingMetric extends CustomSumMetric {
  private final String name;
  private final String description;

  protected RingMetric(String name, String description) {
    this.name = name;
    this.description = description;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return description;
  }

  /** One task's value of the metric that has this name. */
  public record Value(String name, long value) implements CustomTaskMetric {}
}
