package io.shmring.spark.request;

import com.codahale.metrics.Gauge;
import io.shmring.spark.request.FunctionTask.Metrics;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.util.TaskCompletionListener;
import scala.Option;

/** Makes gauges of this executor's Python workers with rings, and of sums over all their tasks. */
public final class WorkerMetrics {
  // Last task of each worker, until the task ends.
  private static final Map<Long, TaskContext> BUSY = new ConcurrentHashMap<>();

  private WorkerMetrics() {}

  /**
   * Notes that a worker has a task.
   *
   * @param worker the worker's process as this version of Spark describes it
   */
  static void begins(Option<?> worker, TaskContext context) {
    if (worker.isDefined()) {
      long pid = pid(worker.get());
      BUSY.put(pid, context);
      // Remove the worker from BUSY only if BUSY has this task for it: the worker may have got its
      // next task before this task ended.
      context.addTaskCompletionListener((TaskCompletionListener) ended -> BUSY.remove(pid, context));
    }
  }

  // CHANGE: edit this for a new version of Spark
  /**
   * Returns the number of a worker's process; 0 if the number is not known: the worker then counts
   * as idle.
   */
  private static long pid(Object worker) {
    if (worker instanceof ProcessHandle process) {
      return process.pid();
    }
    try {
      return worker instanceof Number number
          ? number.longValue()
          : (long) worker.getClass().getMethod("pid").invoke(worker);
    } catch (ReflectiveOperationException error) {
      return 0;
    }
  }

  // CHANGE: edit this for a new metric
  public static Map<String, Gauge<Long>> gauges() {
    Map<String, Gauge<Long>> gauges = new TreeMap<>();
    Metrics.TOTALS.forEach(name -> gauges.put("functions." + name, () -> Metrics.total(name)));
    gauges.put("functions.ringBytes", Clients::ringBytes);
    gauges.put("functions.workers", () -> workers().count());
    gauges.put("functions.idleWorkers", () -> idle().count());
    gauges.put(
        "functions.idleWorkerBytes", () -> idle().mapToLong(WorkerMetrics::privateBytes).sum());
    return gauges;
  }

  /** Returns the processes that the daemon of workers with rings has started. */
  private static Stream<Long> workers() {
    String daemon =
        SparkEnv.get().conf().get(Call.PythonCall.DAEMON_SETTING, Call.PythonCall.DAEMON);
    return ProcessHandle.current()
        .children()
        .filter(each -> read(each.pid(), "cmdline").contains(daemon))
        .flatMap(ProcessHandle::children)
        .map(ProcessHandle::pid);
  }

  private static Stream<Long> idle() {
    return workers().filter(pid -> !BUSY.containsKey(pid));
  }

  private static long privateBytes(long pid) {
    return read(pid, "smaps_rollup")
        .lines()
        .filter(line -> line.startsWith("Private_"))
        .mapToLong(line -> 1024 * Long.parseLong(line.replaceAll("\\D", "")))
        .sum();
  }

  /** Returns a file of a process; empty if the process has ended. */
  private static String read(long pid, String file) {
    try {
      return Files.readString(Path.of("/proc", Long.toString(pid), file));
    } catch (IOException error) {
      return "";
    }
  }
}
