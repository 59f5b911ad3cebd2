package io.shmring.spark.stream;

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.shmring.Ring;
import io.shmring.spark.job.RingNames;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The position of a stream in each of its rings. */
final class RingOffset extends Offset {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * @param uuid identity of the ring; a new ring of the same name counts from the beginning
   * @param sequence sequence below which all messages have been read
   * @param rows number of rows read from `sequence` on: a real-time batch may end inside a message
   */
  record Position(
      @JsonProperty(required = true) UUID uuid,
      @JsonProperty(required = true) long sequence,
      @JsonInclude(JsonInclude.Include.NON_DEFAULT) long rows)
      implements Serializable {
    Position {
      Objects.requireNonNull(uuid);
    }

    Position(UUID uuid, long sequence) {
      this(uuid, sequence, 0);
    }

    /**
     * Returns the position's sequence in the ring with this uuid, at least `lowest`; `lowest` if
     * the position belongs to another ring.
     */
    long in(UUID ring, long lowest) {
      return uuid.equals(ring) ? Math.max(sequence, lowest) : lowest;
    }
  }

  private final Map<String, Position> positions;

  RingOffset(Map<String, Position> positions) {
    this.positions = new TreeMap<>(positions);
  }

  static RingOffset of(Offset offset) {
    return offset instanceof RingOffset ours ? ours : parse(offset.json());
  }

  static RingOffset parse(String json) {
    try {
      return new RingOffset(
          Map.copyOf(JSON.readValue(json, new TypeReference<Map<String, Position>>() {})));
    } catch (JsonProcessingException | RuntimeException error) {
      throw new IllegalArgumentException("not an offset of a shmring stream: " + json, error);
    }
  }

  /**
   * Returns the position in a ring. Finds the position by the ring's uuid or path if the offset has
   * the ring under another form of its name, which the user wrote when the query last started.
   */
  Optional<Position> position(String ring) {
    return Optional.ofNullable(positions.get(ring))
        .or(() -> Optional.ofNullable(positions.get(writtenAs(ring))));
  }

  private String writtenAs(String ring) {
    Object identity = RingNames.identity(ring);
    Path path = Ring.path(ring);
    return positions.entrySet().stream()
        .filter(
            each ->
                each.getValue().uuid().equals(identity) || Ring.path(each.getKey()).equals(path))
        .map(Map.Entry::getKey)
        .findFirst()
        .orElse(ring);
  }

  @Override
  public String json() {
    return JSON.valueToTree(positions).toString();
  }
}
