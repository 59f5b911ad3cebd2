package io.shmring.spark.request;

import java.util.HashMap;
import java.util.Map;

/**
 * Counts the work of one task in plain numbers, and adds them to the node's metrics now and then. A
 * task counts some fifteen numbers for each batch, and Spark reads the metrics of a running task
 * only every few seconds. One thread at a time may use an object.
 */
final class TaskCounts {
  // Number of first updates that need no INTERVAL_NS between them. Without them, Spark's UI could
  // show the first batches minutes late: if the node above is slow, a task may give a few batches
  // and then none for minutes.
  private static final int AT_ONCE = 16;
  private static final long INTERVAL_NS = 10_000_000; // least time between two later updates
  // Value of `more` if nothing was added. It is not 0, because Spark's UI shows a metric as soon as
  // any number, even 0, was added to it.
  private static final long NOTHING = -1;

  private static final class Sum {
    private long more = NOTHING; // counted since the last update of the metrics
    private long largest; // largest number that was added
  }

  private final FunctionTask.Metrics metrics;
  private final Map<String, Sum> sums = new HashMap<>();
  private int updates;
  private long updated; // time of the last update

  TaskCounts(FunctionTask.Metrics metrics) {
    this.metrics = metrics;
    metrics.all().keySet().forEach(name -> sums.put(name, new Sum()));
  }

  void add(String name, long more) {
    Sum sum = sums.get(name);
    sum.more = Math.max(0, sum.more) + more;
    sum.largest = Math.max(sum.largest, more);
  }

  /** Updates the metrics for each of the first batches, and later at intervals. */
  void updateAtTimes() {
    if (updates < AT_ONCE || System.nanoTime() - updated >= INTERVAL_NS) {
      update();
    }
  }

  /** Adds all that was counted to the metrics. */
  void update() {
    boolean isMore = false;
    for (Map.Entry<String, Sum> each : sums.entrySet()) {
      Sum sum = each.getValue();
      if (sum.more != NOTHING) {
        metrics.add(each.getKey(), sum.more);
        sum.more = NOTHING;
        isMore = true;
      }
    }
    if (isMore) {
      updates++;
      updated = System.nanoTime();
    }
    long largest = sums.get("requestBytes").largest; // clients add the bytes of each request
    if (largest > 0) {
      metrics.sent(largest);
    }
  }
}
