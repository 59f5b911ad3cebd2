package io.shmring.spark;

import io.shmring.BranchOptions;
import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of a read, checked.
 *
 * @param rings names or paths
 * @param hosts each of which has these rings; empty: this host
 * @param branch to join; empty for one that nobody else sees
 * @param start where a branch begins that is not there yet: latest, earliest or a sequence
 * @param maxMessages a task stops behind so many
 * @param timeoutMillis how long a task waits for a message
 * @param untilEnd a task reads up to the end marker; otherwise what is there when it begins
 * @param zeroCopy columns lie in the ring instead of being copied out
 * @param releaseAtEnd messages are released when their task has succeeded; otherwise once read
 * @param maxMessagesPerTrigger of a stream
 * @param failOnDataLoss of a stream
 */
record ReadOptions(
    List<String> rings,
    List<String> hosts,
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

  static ReadOptions of(CaseInsensitiveStringMap options) {
    String until = choice(options, "until", "empty", "end");
    String release =
        choice(
            options,
            "release",
            until.equals("empty") ? List.of("task", "message") : List.of("message", "task"));
    return new ReadOptions(
        RingNames.of(options),
        list(options.getOrDefault("hosts", "")),
        options.getOrDefault("branch", ""),
        start(options.getOrDefault("start", "earliest")),
        positive(options, "maxMessages"),
        millis(options.getOrDefault("timeout", "")),
        until.equals("end"),
        !options.getBoolean("copy", true),
        release.equals("task"),
        positive(options, "maxMessagesPerTrigger"),
        options.getBoolean("failOnDataLoss", true));
  }

  BranchOptions branchOptions() {
    return switch (start) {
      case "latest" -> BranchOptions.LATEST;
      case "earliest" -> BranchOptions.EARLIEST;
      default -> BranchOptions.at(Long.parseLong(start));
    };
  }

  private static String start(String text) {
    if (!text.equals("latest") && !text.equals("earliest") && !text.matches("[0-9]{1,18}")) {
      throw new IllegalArgumentException(
          "option start must be latest, earliest or a sequence, not \"" + text + "\"");
    }
    return text;
  }

  private static String choice(CaseInsensitiveStringMap options, String name, String... choices) {
    return choice(options, name, List.of(choices));
  }

  private static String choice(
      CaseInsensitiveStringMap options, String name, List<String> choices) {
    String text = options.getOrDefault(name, choices.get(0));
    if (!choices.contains(text)) {
      throw new IllegalArgumentException(
          String.format(
              "option %s must be %s, not \"%s\"", name, String.join(" or ", choices), text));
    }
    return text;
  }

  private static long positive(CaseInsensitiveStringMap options, String name) {
    long number = options.getLong(name, Long.MAX_VALUE);
    if (number <= 0) {
      throw new IllegalArgumentException("option " + name + " must be positive, not " + number);
    }
    return number;
  }

  private static long millis(String seconds) {
    if (seconds.isEmpty()) {
      return Long.MAX_VALUE;
    }
    double number = Double.parseDouble(seconds);
    if (!(number >= 0)) {
      throw new IllegalArgumentException("option timeout is in seconds, not \"" + seconds + "\"");
    }
    return (long) Math.min(number * 1000, Long.MAX_VALUE);
  }

  private static List<String> list(String text) {
    return List.of(text.split(",")).stream()
        .map(String::strip)
        .filter(part -> !part.isEmpty())
        .toList();
  }
}
