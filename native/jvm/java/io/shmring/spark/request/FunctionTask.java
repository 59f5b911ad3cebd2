package io.shmring.spark.request;

import java.io.Serializable;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.execution.python.PythonSQLMetrics;
import org.apache.spark.util.TaskCompletionListener;
import scala.Function1;
import scala.Function2;
import scala.collection.Iterator;
import scala.collection.immutable.ListMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Describes the work of each task of a node: the task sends the rows of the node's children as
 * requests, and makes the node's output of the answers.
 *
 * @param <T> the child's output: rows, or batches of columns
 * @param <R> the node's output: rows, or batches of columns
 */
public record FunctionTask<T, R>(
    Call call,
    Signature signature,
    Input.Maker<T> input,
    Output<R> output,
    Metrics metrics)
    implements Serializable {
  /** Turns a task's answers into the node's output. */
  @FunctionalInterface
  public interface Output<R> extends Serializable {
    java.util.Iterator<R> of(AnsweredBatches answers);
  }

  public Function1<Iterator<T>, Iterator<R>> overOne() {
    return (Function1<Iterator<T>, Iterator<R>> & Serializable) child -> over(List.of(child));
  }

  public Function2<Iterator<T>, Iterator<T>, Iterator<R>> overTwo() {
    return (Function2<Iterator<T>, Iterator<T>, Iterator<R>> & Serializable)
        (left, right) -> over(List.of(left, right));
  }

  private Iterator<R> over(List<Iterator<T>> children) {
    TaskContext context = TaskContext.get();
    List<java.util.Iterator<T>> rows = children.stream().map(CollectionConverters::asJava).toList();
    AnsweredBatches answers = new AnsweredBatches(this, rows, context);
    context.addTaskCompletionListener((TaskCompletionListener) ended -> answers.close());
    return CollectionConverters.asScala(output.of(answers));
  }

  /**
   * Counts the work of a node's tasks for Spark's UI. If Spark's own Python workers run the
   * functions, also adds the work to sums over all such tasks of this process.
   *
   * @param all metrics by their names for Spark, in the order in which its UI is to show them; a
   *     metric that Spark's own nodes of Python functions also have is shown in Spark's words
   * @param isOfPython whether Spark's own Python workers run the functions
   */
  public record Metrics(LinkedHashMap<String, SQLMetric> all, boolean isOfPython)
      implements Serializable {
    // CHANGE: edit this for a new metric
    /** Names of the metrics that {@link #total} sums up over all tasks. */
    public static final List<String> TOTALS =
        List.of(
            "numInputRows",
            "numOutputRows",
            "batches",
            "outputBatches",
            "requestBytes",
            "answerBytes",
            "passedOnBytes",
            "answerTime",
            "workedTime",
            "inputTime",
            "roomTime");

    // Reasons why a worker converts a function's batches with Spark's code instead of shmring's.
    // src/shmring/spark/exchange.py sends a reason as a number: 1 for the first of these.
    private static final List<String> REASONS =
        List.of("code not known", "pandas not known", "kind of function or type", "value");

    private static final Map<String, LongAdder> SUMS =
        TOTALS.stream().collect(Collectors.toMap(name -> name, name -> new LongAdder()));
    private static final long UNSET = -1;

    // CHANGE: edit this for a new metric
    public static Metrics make(SparkContext context, boolean isOfPython) {
      LinkedHashMap<String, SQLMetric> all = new LinkedHashMap<>();
      all.put("numInputRows", SQLMetrics.createMetric(context, "number of input rows"));
      all.put("numOutputRows", SQLMetrics.createMetric(context, "number of output rows"));
      all.put("batches", SQLMetrics.createMetric(context, "number of batches"));
      all.put("outputBatches", SQLMetrics.createMetric(context, "number of output batches"));
      all.put("perRequest", SQLMetrics.createAverageMetric(context, "batches of a request"));
      all.put("largestRequest", size(context, "largest request"));
      all.put("rowTasks", SQLMetrics.createMetric(context, "tasks that kept rows, not columns"));
      all.put("requests", SQLMetrics.createMetric(context, "requests sent"));
      all.put("requestBytes", size(context, "data sent to Python workers"));
      all.put("answers", SQLMetrics.createMetric(context, "answers received"));
      all.put("answerBytes", size(context, "data returned from Python workers"));
      all.put("passedOnBytes", size(context, "data of columns passed on"));
      all.put("answerTime", time(context, "time waited for answers"));
      if (isOfPython) {
        all.put("workedTime", time(context, "time worked in Python"));
        all.put("inputTime", time(context, "time Python waited for input"));
        all.put("roomTime", time(context, "time Python waited for room"));
        // Spark's own metrics: the class of Spark that runs the workers adds to them.
        CollectionConverters.asJava(PythonSQLMetrics.pythonTimingMetricsDesc())
            .forEach((name, words) -> all.put(name, SQLMetrics.createTimingMetric(context, words, UNSET)));
        for (int i = 0; i < REASONS.size(); i++) {
          String words = "batches converted by Spark: " + REASONS.get(i);
          all.put("convertedBySpark" + (i + 1), SQLMetrics.createMetric(context, words));
        }
      } else {
        all.put("retries", SQLMetrics.createMetric(context, "requests sent again"));
        all.put("roomTime", time(context, "time waited for room"));
        all.put("workedTime", time(context, "time worked in the sidecar"));
      }
      return new Metrics(all, isOfPython);
    }

    private static SQLMetric size(SparkContext context, String name) {
      return SQLMetrics.createSizeMetric(context, name, UNSET);
    }

    private static SQLMetric time(SparkContext context, String name) {
      return SQLMetrics.createNanoTimingMetric(context, name, UNSET);
    }

    /**
     * Returns the metrics in order, as a ListMap: other extensions may send the map to tasks, and a
     * VectorMap cannot be sent.
     */
    public scala.collection.immutable.Map<String, SQLMetric> byName() {
      return ListMap.from(CollectionConverters.asScala(all));
    }

    /** Adds to a metric of this task, and to the sum over all tasks of Python functions. */
    void add(String name, long more) {
      all.get(name).add(more);
      LongAdder sum = isOfPython ? SUMS.get(name) : null;
      if (sum != null) {
        sum.add(more);
      }
    }

    /**
     * Sets the task's metrics that are not sums: the bytes of the largest request, and the batches
     * per request.
     */
    void sent(long largest) {
      // Keep a larger size that another partition of the node, in the same task, has set.
      SQLMetric before = all.get("largestRequest");
      before.set(Math.max(before.value(), largest));
      double requests = Math.max(1, all.get("requests").value());
      all.get("perRequest").set(all.get("batches").value() / requests);
    }

    /** Returns the sum of a metric over all tasks of Python functions in this process so far. */
    public static long total(String name) {
      return SUMS.get(name).sum();
    }
  }
}
