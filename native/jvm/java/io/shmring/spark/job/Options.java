package io.shmring.spark.job;

import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.catalyst.util.IntervalUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;

// CHANGE: edit this for a new option of Spark's reads or writes
/** Parses options. Errors name the option and its value. */
public record Options(CaseInsensitiveStringMap given) {
  /** Names of all options, of reads and of writes, because a table may be given both. */
  private static final List<String> NAMES =
      List.of(
          ("ring hosts hostWait branch start maxMessages timeout until copy release"
                  + " maxMessagesPerTrigger failOnDataLoss"
                  + " batchRows batchBytes atomic endMarker inDoubt")
              .split(" "));

  /** Options that Spark itself gives to a source, in lower case. */
  private static final Set<String> SPARKS =
      Set.of("path", "paths", "checkpointlocation", "queryname");

  /**
   * Refuses unknown options, because a misspelt "branch" would silently read without a branch.
   *
   * @throws IllegalArgumentException if there is an unknown option
   */
  public static void check(Collection<String> given) {
    for (String name : given) {
      String lower = name.toLowerCase(Locale.ROOT);
      if (!SPARKS.contains(lower) && NAMES.stream().noneMatch(name::equalsIgnoreCase)) {
        throw new IllegalArgumentException(
            String.format(
                "format(\"shmring\") has no option %s: did you mean %s? It has %s",
                name, nearest(name, NAMES), String.join(", ", NAMES)));
      }
    }
  }

  /** Returns the known name that is most similar to an unknown one. */
  public static String nearest(String unknown, Collection<String> known) {
    return Collections.min(known, Comparator.comparingInt(each -> distance(each, unknown)));
  }

  private static int distance(String known, String unknown) {
    return UTF8String.fromString(known.toLowerCase(Locale.ROOT))
        .levenshteinDistance(UTF8String.fromString(unknown.toLowerCase(Locale.ROOT)));
  }

  public String text(String name) {
    return given.getOrDefault(name, "").strip();
  }

  /**
   * Returns the option's value, which must be one of `choices`; the first choice if the option is
   * not given.
   */
  public String choice(String name, List<String> choices) {
    String text = given.getOrDefault(name, choices.get(0)).strip().toLowerCase(Locale.ROOT);
    if (!choices.contains(text)) {
      throw wrong(name, String.join(" or ", choices));
    }
    return text;
  }

  public boolean flag(String name, boolean otherwise) {
    String other = Boolean.toString(otherwise);
    return Boolean.parseBoolean(choice(name, List.of(other, Boolean.toString(!otherwise))));
  }

  public long positive(String name, long otherwise, long most) {
    String text = text(name);
    if (text.isEmpty()) {
      return otherwise;
    }
    long number = text.matches("\\d{1,18}") ? Long.parseLong(text) : 0;
    if (number == 0 || number > most) {
      String limit = most == Long.MAX_VALUE ? "" : String.format(" of at most %,d", most);
      throw wrong(name, "a positive number" + limit);
    }
    return number;
  }

  /**
   * Returns a time in milliseconds, given as a number of seconds or in a form that Spark reads:
   * 500ms, 2 minutes, interval 1 hour 30 minutes.
   */
  public long millis(String name, long otherwise) {
    String text = text(name).toLowerCase(Locale.ROOT);
    if (text.isEmpty()) {
      return otherwise;
    }
    try {
      if (text.matches("\\d{1,15}(\\.\\d{0,9})?")) {
        return Math.round(Double.parseDouble(text) * 1000);
      }
      if (text.matches("\\d+[a-z]{1,3}")) {
        return JavaUtils.timeStringAs(text, TimeUnit.MILLISECONDS);
      }
      CalendarInterval interval = IntervalUtils.stringToInterval(UTF8String.fromString(text));
      if (interval.months == 0 && interval.days >= 0 && interval.microseconds >= 0) {
        return TimeUnit.DAYS.toMillis(interval.days)
            + TimeUnit.MICROSECONDS.toMillis(interval.microseconds);
      }
    } catch (IllegalArgumentException error) {
      // The text is no time: the error below says which forms are allowed.
    }
    throw wrong(name, "a time: seconds, or a number with its unit such as 500ms, 2 minutes");
  }

  public IllegalArgumentException wrong(String name, String wanted) {
    return new IllegalArgumentException(
        String.format("option %s must be %s, not \"%s\"", name, wanted, given.get(name)));
  }
}
