package io.shmring.spark.request;

import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Writes to the executor's log what a task waits for, as long as it waits for it. */
final class WaitLog {
  /** How often. */
  static final String INTERVAL = "spark.shmring.waitLogInterval";

  private static final Logger LOG = LoggerFactory.getLogger(WaitLog.class);

  private final String task;
  private final String sidecar;
  private final long intervalNanos;
  private long begun;
  private long said;

  WaitLog(TaskContext context, String sidecar, SparkConf conf) {
    this.task =
        String.format(
            "task %d.%d in stage %d",
            context.partitionId(), context.attemptNumber(), context.stageId());
    this.sidecar = sidecar;
    this.intervalNanos =
        TimeUnit.MILLISECONDS.toNanos(conf.getTimeAsMs(INTERVAL, "1min"));
  }

  /** A wait begins. */
  void begin() {
    begun = System.nanoTime();
    said = begun;
  }

  /**
   * To be called again and again while it lasts.
   *
   * @param what is asked who works on what
   */
  void check(Supplier<String> what) {
    long now = System.nanoTime();
    if (now - said >= intervalNanos) {
      said = now;
      LOG.warn(
          "{} has waited for sidecar \"{}\" for {} s: {}",
          task,
          sidecar,
          TimeUnit.NANOSECONDS.toSeconds(now - begun),
          what.get());
    }
  }
}
