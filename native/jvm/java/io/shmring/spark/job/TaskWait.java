package io.shmring.spark.job;

import java.time.Duration;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;

/** Pauses of a task, which end when Spark ends the task. */
public final class TaskWait {
  private static final Duration LOOK = Duration.ofMillis(50);

  private TaskWait() {}

  /** Sleeps for a moment. */
  public static void pause(TaskContext task) {
    try {
      Thread.sleep(LOOK.toMillis());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new TaskKilledException("interrupted while it waited");
    }
    if (task.isInterrupted()) {
      throw new TaskKilledException("ended while it waited");
    }
  }

  public static void sleep(TaskContext task, Duration duration) {
    long deadline = System.nanoTime() + duration.toNanos();
    while (System.nanoTime() - deadline < 0) {
      pause(task);
    }
  }
}
