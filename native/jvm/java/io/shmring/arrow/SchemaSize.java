package io.shmring.arrow;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.arrow.flatbuf.Field;
import org.apache.arrow.flatbuf.KeyValue;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.Schema;
import org.apache.arrow.flatbuf.Timestamp;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.flatbuf.Union;

/**
 * Refuses a schema whose fields and texts, each counted as often as the schema refers to it, have
 * more bytes than the message that contains the schema. Inside a flatbuffer several fields may
 * share one child or one text, so that a few bytes can stand for an endless tree; Arrow's own
 * writers share nothing.
 */
final class SchemaSize {
  private static final int PREFIX = 8;
  // Minimum bytes of a field, or of a pair of key and value in the metadata: 4 in the flatbuffer
  // table of the field or pair, and 4 for the reference to this table.
  private static final int LEAST = 8;

  private long left;

  private SchemaSize(long bytes) {
    this.left = bytes;
  }

  /**
   * @param bytes an IPC message with a schema, and maybe more bytes
   * @throws IllegalArgumentException if there is no schema, or the schema's fields and texts have
   *     more bytes than the message
   */
  static void check(byte[] bytes) {
    ByteBuffer all = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    if (bytes.length < PREFIX || all.getInt(4) > bytes.length - PREFIX) {
      throw new IllegalArgumentException("a schema that is cut off");
    }
    Message message = Message.getRootAsMessage(all.position(PREFIX).slice().order(all.order()));
    if (message.headerType() != MessageHeader.Schema) {
      throw new IllegalArgumentException("no schema, but type " + message.headerType());
    }
    Schema schema = (Schema) message.header(new Schema());
    SchemaSize size = new SchemaSize(bytes.length);
    for (int i = 0; i < schema.fieldsLength(); i++) {
      size.add(schema.fields(i));
    }
    for (int i = 0; i < schema.customMetadataLength(); i++) {
      size.add(schema.customMetadata(i));
    }
  }

  private void add(Field field) {
    spend(LEAST);
    spend(field.nameAsByteBuffer());
    if (field.typeType() == Type.Timestamp) {
      spend(((Timestamp) field.type(new Timestamp())).timezoneAsByteBuffer());
    } else if (field.typeType() == Type.Union) {
      spend((long) Integer.BYTES * ((Union) field.type(new Union())).typeIdsLength());
    }
    for (int i = 0; i < field.childrenLength(); i++) {
      add(field.children(i));
    }
    for (int i = 0; i < field.customMetadataLength(); i++) {
      add(field.customMetadata(i));
    }
  }

  private void add(KeyValue pair) {
    spend(LEAST);
    spend(pair.keyAsByteBuffer());
    spend(pair.valueAsByteBuffer());
  }

  private void spend(ByteBuffer text) {
    spend(text == null ? 0 : text.remaining());
  }

  private void spend(long bytes) {
    left -= bytes;
    if (left < 0) {
      throw new IllegalArgumentException("a schema that names its parts several times");
    }
  }
}
