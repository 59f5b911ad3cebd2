package io.shmring.spark.job;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Parses options; errors name the option and its value. */
public record Options(CaseInsensitiveStringMap given) {
  public String text(String name) {
    return given.getOrDefault(name, "").strip();
  }

  /** One of these values; the first one if the option is not given. */
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

  public long millis(String name, long otherwise) {
    String text = text(name);
    return text.isEmpty()
        ? otherwise
        : Durations.millis(text)
            .orElseThrow(
                () -> wrong(name, "a time: seconds, or a number with its unit such as 500ms, 2 minutes"));
  }

  public IllegalArgumentException wrong(String name, String wanted) {
    return new IllegalArgumentException(
        String.format("option %s must be %s, not \"%s\"", name, wanted, given.get(name)));
  }

  /** Times in options: a number of seconds, or Spark's notation. */
  static final class Durations {
    private static final String NUMBER = "\\d{1,15}(?:\\.\\d{0,9})?";
    private static final Pattern SECONDS = Pattern.compile(NUMBER);
    private static final Pattern PART = Pattern.compile("(" + NUMBER + ")\\s*([a-z]+)\\s*");
    private static final Map<String, Double> MILLIS =
        Map.ofEntries(
            Map.entry("us", 0.001),
            Map.entry("microsecond", 0.001),
            Map.entry("ms", 1.0),
            Map.entry("millisecond", 1.0),
            Map.entry("s", 1e3),
            Map.entry("sec", 1e3),
            Map.entry("second", 1e3),
            Map.entry("m", 60e3),
            Map.entry("min", 60e3),
            Map.entry("minute", 60e3),
            Map.entry("h", 3600e3),
            Map.entry("hour", 3600e3),
            Map.entry("d", 86400e3),
            Map.entry("day", 86400e3));

    private Durations() {}

    /** Milliseconds of 10, 0.5, 10s, 500ms, 2 minutes, interval 1 hour 30 minutes; else empty. */
    static OptionalLong millis(String text) {
      String rest = text.strip().toLowerCase(Locale.ROOT);
      if (SECONDS.matcher(rest).matches()) {
        return OptionalLong.of(Math.round(Double.parseDouble(rest) * 1000));
      }
      if (rest.startsWith("interval ")) {
        rest = rest.substring("interval ".length()).strip();
      }
      Matcher part = PART.matcher(rest);
      double millis = 0;
      int end = 0;
      while (part.find() && part.start() == end) {
        String unit = part.group(2);
        Double one = MILLIS.get(unit);
        if (one == null && unit.length() > 3 && unit.endsWith("s")) {
          one = MILLIS.get(unit.substring(0, unit.length() - 1));
        }
        if (one == null) {
          return OptionalLong.empty();
        }
        millis += Double.parseDouble(part.group(1)) * one;
        end = part.end();
      }
      return end > 0 && end == rest.length()
          ? OptionalLong.of(Math.round(millis))
          : OptionalLong.empty();
    }
  }
}
