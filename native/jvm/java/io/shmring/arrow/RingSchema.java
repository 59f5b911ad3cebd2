package io.shmring.arrow;

import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Optional;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * The Arrow schema in a ring's header.
 *
 * @param bytes the schema as an IPC message
 * @param stored the schema as written, with dictionaries if the producers use them
 * @param plain the schema as read, with the dictionaries' values in place
 */
public record RingSchema(byte[] bytes, Schema stored, Schema plain) {

  /** Returns the schema of a ring; empty for a ring of bytes. */
  public static Optional<RingSchema> of(Ring ring) {
    byte[] bytes = ring.schema();
    if (bytes.length == 0) {
      return Optional.empty();
    }
    try {
      return Optional.of(of(bytes));
    } catch (RuntimeException error) {
      throw new RingException(
          Status.DAMAGED, "ring \"%s\": its Arrow schema is damaged: %s", ring.name(), error);
    }
  }

  /** Returns the schema of a ring; throws RingException if the ring has none. */
  static RingSchema required(Ring ring) {
    return of(ring)
        .orElseThrow(
            () ->
                new RingException(
                    Status.INVALID, "ring \"%s\" has no Arrow schema", ring.name()));
  }

  /**
   * @param bytes a schema as an IPC message
   */
  static RingSchema of(byte[] bytes) {
    Schema stored = parse(bytes);
    return new RingSchema(bytes, stored, plain(stored));
  }

  static Schema parse(byte[] bytes) {
    SchemaSize.check(bytes);
    return Schema.deserializeMessage(ByteBuffer.wrap(bytes));
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
