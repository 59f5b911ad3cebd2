package io.shmring.spark.request;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.shmring.sidecar.SidecarClient;
import io.shmring.sidecar.Timeouts;
import java.io.IOException;
import java.util.Optional;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;

/**
 * What a function that shmring.spark.through() made says of itself: in its name.
 *
 * @param timeout in seconds, as all times that users give
 * @param replySlots 0 if they gave none
 */
public record SidecarCall(
    String sidecar, int inFlight, double timeout, double connectTimeout, long replySlots)
    implements Call {
  // Code that does not stop after one row fills several batches while the sidecar is not there yet.
  private static final long FIRST_BYTES = 1 << 14;

  /** A batch takes at most one such part of a ring, so that others' find room beside it. */
  static final int PART = 8;

  private static final String BEGINS = "shmring.through";
  private static final ObjectMapper JSON =
      JsonMapper.builder().enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS).build();

  /** Empty if it is somebody else's function. */
  public static Optional<SidecarCall> of(PythonUDF function) {
    String name = function.name();
    if (!name.startsWith(BEGINS)) {
      return Optional.empty();
    }
    try (JsonParser words = in(name)) {
      return Optional.of(read(words));
    } catch (IOException error) {
      return Optional.empty();
    }
  }

  /** What stands in a text from the first call on: that, and what follows it. */
  public static JsonParser in(String text) throws IOException {
    int at = text.indexOf(BEGINS);
    return JSON.createParser(at < 0 ? "" : text.substring(at + BEGINS.length()));
  }

  /** The call that stands there: bridge.py's options, by their names. */
  public static SidecarCall read(JsonParser words) throws IOException {
    JsonNode call = JSON.readTree(words);
    if (call == null) {
      throw new IOException("no call");
    }
    return new SidecarCall(
        call.path("name").textValue(),
        call.path("in_flight").intValue(),
        call.path("timeout").doubleValue(),
        call.path("connect_timeout").doubleValue(),
        call.path("reply_slots").longValue());
  }

  @Override
  public String name() {
    return sidecar;
  }

  /** Of a plan's nodes. */
  public String nodeName() {
    return "Sidecar " + sidecar;
  }

  /** An empty partition troubles nobody. */
  @Override
  public boolean isCalledWithNothing() {
    return false;
  }

  /** As many as later, if the sidecar is there: the first batches have as many rows as all. */
  @Override
  public long firstBytes() {
    return SidecarClient.requestRingBytes(sidecar).orElse(FIRST_BYTES * PART) / PART;
  }

  @Override
  public long wholeBytes() {
    return Long.MAX_VALUE;
  }

  @Override
  public boolean isStruct() {
    return false;
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
