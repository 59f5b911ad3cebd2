package io.shmring.arrow;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * The Arrow schema in a ring's header.
 *
 * @param bytes as an IPC message
 * @param stored as it is written: dictionary-encoded where the producers do that
 * @param plain as it is read: dictionaries are resolved
 */
public record RingSchema(byte[] bytes, Schema stored, Schema plain) {

  /** The schema of a ring; empty for a ring of bytes. */
  public static Optional<RingSchema> of(Ring ring) {
    byte[] bytes = ring.schema();
    if (bytes.length == 0) {
      return Optional.empty();
    }
    Schema stored;
    try {
      stored = parse(bytes);
    } catch (IOException | RuntimeException error) {
      throw new RingException(
          Status.DAMAGED,
          String.format("ring \"%s\": its Arrow schema is damaged: %s", ring.name(), error));
    }
    return Optional.of(new RingSchema(bytes, stored, plain(stored)));
  }

  static Schema parse(byte[] bytes) throws IOException {
    return MessageSerializer.deserializeSchema(
        new ReadChannel(Channels.newChannel(new ByteArrayInputStream(bytes))));
  }

  boolean hasDictionaries() {
    return stored.getFields().stream().anyMatch(RingSchema::hasDictionaries);
  }

  private static boolean hasDictionaries(Field field) {
    return field.getDictionary() != null
        || field.getChildren().stream().anyMatch(RingSchema::hasDictionaries);
  }

  private static Schema plain(Schema schema) {
    return new Schema(
        schema.getFields().stream().map(RingSchema::plain).toList(), schema.getCustomMetadata());
  }

  private static Field plain(Field field) {
    List<Field> children = field.getChildren().stream().map(RingSchema::plain).toList();
    return new Field(
        field.getName(),
        new FieldType(field.isNullable(), field.getType(), null, field.getMetadata()),
        children);
  }
}
