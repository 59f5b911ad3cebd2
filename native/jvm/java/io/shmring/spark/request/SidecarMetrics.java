package io.shmring.spark.request;

import io.shmring.sidecar.Counters;
import java.io.Serializable;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import scala.collection.immutable.VectorMap;
import scala.jdk.javaapi.CollectionConverters;

/** What the operator's tasks have done, for Spark's UI. */
public record SidecarMetrics(
    SQLMetric inputRows,
    SQLMetric outputRows,
    SQLMetric batches,
    SQLMetric requests,
    SQLMetric requestBytes,
    SQLMetric answers,
    SQLMetric answerBytes,
    SQLMetric retries,
    SQLMetric roomTime,
    SQLMetric answerTime,
    SQLMetric workedTime)
    implements Serializable {
  private static final long UNSET = -1;

  public static SidecarMetrics make(SparkContext context) {
    return new SidecarMetrics(
        SQLMetrics.createMetric(context, "number of input rows"),
        SQLMetrics.createMetric(context, "number of output rows"),
        SQLMetrics.createMetric(context, "number of batches"),
        SQLMetrics.createMetric(context, "requests sent"),
        SQLMetrics.createSizeMetric(context, "bytes sent", UNSET),
        SQLMetrics.createMetric(context, "answers received"),
        SQLMetrics.createSizeMetric(context, "bytes received", UNSET),
        SQLMetrics.createMetric(context, "requests sent again"),
        SQLMetrics.createNanoTimingMetric(context, "time waited for room", UNSET),
        SQLMetrics.createNanoTimingMetric(context, "time waited for answers", UNSET),
        SQLMetrics.createNanoTimingMetric(context, "time worked in the sidecar", UNSET));
  }

  /** By the names that Spark finds them by, in the order in which its UI is to show them. */
  public scala.collection.immutable.Map<String, SQLMetric> byName() {
    Map<String, SQLMetric> names = new LinkedHashMap<>();
    names.put("numInputRows", inputRows);
    names.put("numOutputRows", outputRows);
    names.put("batches", batches);
    names.put("requests", requests);
    names.put("requestBytes", requestBytes);
    names.put("answers", answers);
    names.put("answerBytes", answerBytes);
    names.put("retries", retries);
    names.put("roomTime", roomTime);
    names.put("answerTime", answerTime);
    names.put("workedTime", workedTime);
    return VectorMap.from(CollectionConverters.asScala(names));
  }

  void add(Counters counters) {
    requests.add(counters.requests());
    requestBytes.add(counters.requestBytes());
    answers.add(counters.answers());
    answerBytes.add(counters.answerBytes());
    retries.add(counters.retries());
    roomTime.add(counters.roomNanos());
    answerTime.add(counters.answerNanos());
    workedTime.add(counters.workedNanos());
  }
}
