package io.shmring.spark.sidecar;

import io.shmring.sidecar.Patience;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import scala.collection.immutable.Seq;

/**
 * What a function that shmring.spark.through() made says of itself in its name, which is all that
 * Spark's JVM knows of it.
 *
 * @param timeout in seconds, as all times that users give
 * @param replySlots 0 if they gave none
 */
public record SidecarCall(
    String sidecar, int inFlight, double timeout, double patience, long replySlots)
    implements Serializable {
  private static final Pattern NAME =
      Pattern.compile(
          "shmring\\.through\\(([A-Za-z0-9._-]+), in_flight=(\\d{1,9}), timeout=([0-9.e+-]+|inf),"
              + " patience=([0-9.e+-]+|inf)(?:, reply_slots=(\\d{1,18}))?\\)");

  /** Where the function's class stands in what was pickled: a function that only has its name has another. */
  private static final String CLASS = "shmring.spark.functions.bridge";

  private static final int CLASS_WITHIN = 64;

  /** Empty if it is somebody else's function. */
  static Optional<SidecarCall> of(PythonUDF function) {
    Matcher name = NAME.matcher(function.name());
    if (!name.matches() || !isOurs(function.func().command())) {
      return Optional.empty();
    }
    return Optional.of(
        new SidecarCall(
            name.group(1),
            Integer.parseInt(name.group(2)),
            seconds(name.group(3)),
            seconds(name.group(4)),
            name.group(5) == null ? 0 : Long.parseLong(name.group(5))));
  }

  private static double seconds(String text) {
    return text.equals("inf") ? Double.POSITIVE_INFINITY : Double.parseDouble(text);
  }

  /** A wrapper of ours may have taken over its name (functools.wraps), and do something else. */
  private static boolean isOurs(Seq<Object> command) {
    int count = Math.min(CLASS_WITHIN, command.length());
    byte[] begin = new byte[count];
    for (int i = 0; i < count; i++) {
      begin[i] = (Byte) command.apply(i);
    }
    return new String(begin, StandardCharsets.ISO_8859_1).contains(CLASS);
  }

  Patience waits() {
    return new Patience(timeout, patience);
  }

  @Override
  public String toString() {
    String slots = replySlots == 0 ? "" : ", reply_slots=" + replySlots;
    return String.format(
        "through(%s, in_flight=%d, timeout=%s, patience=%s%s)",
        sidecar, inFlight, timeout, patience, slots);
  }
}
