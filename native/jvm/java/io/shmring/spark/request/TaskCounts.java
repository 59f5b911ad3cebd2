package io.shmring.spark.request;

import io.shmring.exchange.Client.Counters;
import java.util.HashMap;
import java.util.Map;

/**
 * Counts the work of one task in plain numbers, and adds them to the node's metrics now and then. A
 * task counts some fifteen numbers for each batch, and Spark looks at the metrics of a task that
 * runs only every few seconds. One thread at a time may use an object.
 */
final class TaskCounts implements Counters {
  // Time between two updates of the metrics. A task that counts nothing more makes none.
  private static final long INTERVAL_NS = 10_000_000;
  private static final long NOTHING = -1;

  private static final class Sum {
    private long more = NOTHING; // counted since the last update of the metrics
  }

  private final FunctionTask.Metrics metrics;
  private final Map<String, Sum> sums = new HashMap<>();
  private long largest; // bytes of the largest request
  private long updated = System.nanoTime() - INTERVAL_NS; // so that the first batch is shown at once

  TaskCounts(FunctionTask.Metrics metrics) {
    this.metrics = metrics;
    metrics.all().keySet().forEach(name -> sums.put(name, new Sum()));
  }

  @Override
  public void add(String name, long more) {
    Sum sum = sums.get(name);
    sum.more = Math.max(0, sum.more) + more;
  }

  /** Counts a request that is sent. */
  void sent(long bytes) {
    largest = Math.max(largest, bytes);
  }

  /** Updates the metrics if the last update is long enough ago. */
  void updateAtTimes() {
    if (System.nanoTime() - updated >= INTERVAL_NS) {
      update();
    }
  }

  /** Adds all that was counted to the metrics. */
  void update() {
    updated = System.nanoTime();
    sums.forEach(
        (name, sum) -> {
          if (sum.more != NOTHING) {
            metrics.add(name, sum.more);
            sum.more = NOTHING;
          }
        });
    if (largest > 0) {
      metrics.sent(largest);
    }
  }
}
