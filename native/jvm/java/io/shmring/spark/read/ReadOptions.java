package io.shmring.spark.read;

import io.shmring.BranchOptions;
import io.shmring.spark.job.Options;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.job.RingPlace;
import java.io.Serializable;
import java.util.List;
import java.util.stream.Stream;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

// CHANGE: edit this for a new option of Spark's reads or writes
/**
 * The options of a read, checked. docs/reference/spark.md says what each option does.
 *
 * @param hosts hosts that have the rings; empty for the driver's host
 * @param branch name of the branch to read; empty for a branch of the reader's own
 */
public record ReadOptions(
    List<String> rings,
    List<String> hosts,
    long hostWaitMillis,
    String branch,
    String start,
    long maxMessages,
    long timeoutMillis,
    boolean untilEnd,
    boolean zeroCopy,
    boolean releaseAtEnd,
    long maxMessagesPerTrigger,
    boolean failOnDataLoss)
    implements Serializable {
  public static ReadOptions of(CaseInsensitiveStringMap given) {
    Options options = new Options(given);
    boolean untilEnd = options.choice("until", List.of("empty", "end")).equals("end");
    List<String> releases = untilEnd ? List.of("message", "task") : List.of("task", "message");
    return new ReadOptions(
        RingNames.of(given),
        list(options.text("hosts")),
        options.millis("hostWait", RingPlace.WAIT_MILLIS),
        options.text("branch"),
        start(options),
        options.positive("maxMessages", Long.MAX_VALUE, Long.MAX_VALUE),
        options.millis("timeout", Long.MAX_VALUE),
        untilEnd,
        !options.flag("copy", true),
        options.choice("release", releases).equals("task"),
        options.positive("maxMessagesPerTrigger", Long.MAX_VALUE, Long.MAX_VALUE),
        options.flag("failOnDataLoss", true));
  }

  public BranchOptions branchOptions() {
    return switch (start) {
      case "latest" -> BranchOptions.LATEST;
      case "earliest" -> BranchOptions.EARLIEST;
      default -> BranchOptions.at(Long.parseLong(start));
    };
  }

  /**
   * Returns the identities of the rings that have this name, one for each host. The identities
   * serve to find and refuse a query that reads one branch of a ring twice.
   */
  public List<Object> identities(String ring) {
    return hosts.isEmpty()
        ? List.of(RingNames.identity(ring))
        : hosts.stream().map(host -> RingPlace.identity(host, ring)).toList();
  }

  private static String start(Options options) {
    String text = options.text("start");
    if (text.matches("\\d{1,18}")) {
      return text;
    }
    if (!text.isEmpty() && !List.of("latest", "earliest").contains(text)) {
      throw options.wrong("start", "latest, earliest or a sequence");
    }
    return text.isEmpty() ? "earliest" : text;
  }

  private static List<String> list(String text) {
    return Stream.of(text.split(",")).map(String::strip).filter(part -> !part.isEmpty()).toList();
  }
}
