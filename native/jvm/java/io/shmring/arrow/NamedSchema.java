package io.shmring.arrow;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.Decimal;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * A schema whose types have names, but perhaps no vectors: Arrow's own parser refuses decimals of less
 * than 128 bits.
 */
final class NamedSchema {
  private NamedSchema() {}

  /**
   * @param message of a schema
   */
  static Schema of(Frame message) {
    org.apache.arrow.flatbuf.Schema schema = new org.apache.arrow.flatbuf.Schema();
    message.metadata().header(schema);
    List<Field> fields = new ArrayList<>();
    for (int i = 0; i < schema.fieldsLength(); i++) {
      fields.add(field(schema.fields(i)));
    }
    return new Schema(fields);
  }

  private static Field field(org.apache.arrow.flatbuf.Field field) {
    List<Field> children = new ArrayList<>();
    for (int i = 0; i < field.childrenLength(); i++) {
      children.add(field(field.children(i)));
    }
    return new Field(field.name(), new FieldType(field.nullable(), type(field), null), children);
  }

  private static ArrowType type(org.apache.arrow.flatbuf.Field field) {
    if (field.typeType() != Type.Decimal) {
      return ArrowType.getTypeForField(field);
    }
    Decimal decimal = (Decimal) field.type(new Decimal());
    return new ArrowType.Decimal(decimal.precision(), decimal.scale(), decimal.bitWidth());
  }
}
