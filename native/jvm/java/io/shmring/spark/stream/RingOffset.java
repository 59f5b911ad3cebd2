package io.shmring.spark.stream;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.shmring.Ring;
import io.shmring.spark.job.RingNames;
import java.io.Serializable;
import java.nio.file.Path;
import java.util.Map;
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
  record Position(UUID uuid, long sequence, long rows) implements Serializable {
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
    Map<String, Position> positions = new TreeMap<>();
    try {
      for (Map.Entry<String, JsonNode> ring : JSON.readTree(json).properties()) {
        positions.put(
            ring.getKey(),
            new Position(
                UUID.fromString(ring.getValue().required("uuid").textValue()),
                ring.getValue().required("sequence").longValue(),
                ring.getValue().path("rows").longValue()));
      }
    } catch (JsonProcessingException | RuntimeException error) {
      throw new IllegalArgumentException("not an offset of a shmring stream: " + json, error);
    }
    return new RingOffset(positions);
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
    ObjectNode json = JSON.createObjectNode();
    positions.forEach(
        (ring, position) -> {
          ObjectNode node = json.putObject(ring);
          node.put("uuid", position.uuid().toString()).put("sequence", position.sequence());
          if (position.rows() > 0) {
            node.put("rows", position.rows());
          }
        });
    return json.toString();
  }
}
