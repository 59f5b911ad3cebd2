package io.shmring.spark.sidecar;

import io.shmring.sidecar.Timeouts;
import java.io.Serializable;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;

/**
 * What a function that shmring.spark.through() made says of itself: in its name, where that is nobody
 * else's.
 *
 * @param timeout in seconds, as all times that users give
 * @param replySlots 0 if they gave none
 */
public record SidecarCall(
    String sidecar, int inFlight, double timeout, double connectTimeout, long replySlots)
    implements Serializable {
  private static final Pattern NAME =
      Pattern.compile(
          "shmring\\.through\\(([A-Za-z0-9._-]+), in_flight=(\\d{1,9}), timeout=([0-9.e+-]+|inf),"
              + " connect_timeout=([0-9.e+-]+|inf)(?:, reply_slots=(\\d{1,18}))?\\)");

  private static final String MODULE = "shmring.spark.functions.bridge";

  /** Empty if it is somebody else's function. */
  static Optional<SidecarCall> of(PythonUDF function) {
    Matcher name = NAME.matcher(function.name());
    return name.matches() && Pickled.isOf(function, MODULE)
        ? Optional.of(of(name))
        : Optional.empty();
  }

  /** Finds a call in a text. */
  static Matcher in(String text) {
    return NAME.matcher(text);
  }

  /** The call that was found. */
  static SidecarCall of(Matcher found) {
    return new SidecarCall(
        found.group(1),
        Integer.parseInt(found.group(2)),
        seconds(found.group(3)),
        seconds(found.group(4)),
        found.group(5) == null ? 0 : Long.parseLong(found.group(5)));
  }

  private static double seconds(String text) {
    return text.equals("inf") ? Double.POSITIVE_INFINITY : Double.parseDouble(text);
  }

  Timeouts waits() {
    return new Timeouts(timeout, connectTimeout);
  }

  @Override
  public String toString() {
    String slots = replySlots == 0 ? "" : ", reply_slots=" + replySlots;
    return String.format(
        "through(%s, in_flight=%d, timeout=%s, connect_timeout=%s%s)",
        sidecar, inFlight, timeout, connectTimeout, slots);
  }
}
