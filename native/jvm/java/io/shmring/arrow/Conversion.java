package io.shmring.arrow;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.ListIterator;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.TimeUnit;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

// CHANGE: edit this for a new type between Spark and Arrow
/**
 * Converts columns of types that Spark does not have to types that it has, without the loss of a
 * digit: nanoseconds become microseconds, unsigned integers become the next wider signed integers
 * (64 bits: decimals), and decimals of 256 bits become decimals of 128 bits. Fields inside lists,
 * maps and structs are converted too.
 */
public final class Conversion {
  private static final int MOST_DIGITS = 38;
  private static final int NANOS = 1000; // nanoseconds in a microsecond

  private final String label;
  private final BufferAllocator allocator;
  private final boolean needed;
  private final BlockPool pool = new BlockPool();

  /**
   * @param label name of the columns' source, for errors
   * @param fields fields of the columns
   */
  public Conversion(String label, List<Field> fields, BufferAllocator allocator) {
    this.label = label;
    this.allocator = allocator;
    this.needed = fields.stream().anyMatch(Conversion::isNeeded);
  }

  /** Returns the field with the types that its values will have after the conversion. */
  public static Field of(Field field) {
    FieldType type =
        new FieldType(
            field.isNullable(), of(field.getType()), field.getDictionary(), field.getMetadata());
    return new Field(
        field.getName(), type, field.getChildren().stream().map(Conversion::of).toList());
  }

  /** Returns whether values of a column are converted, or have to be checked. */
  private static boolean isNeeded(Field field) {
    return isOf(field.getType()) || field.getChildren().stream().anyMatch(Conversion::isNeeded);
  }

  private static boolean isOf(ArrowType type) {
    boolean isTime = type instanceof ArrowType.Time time && time.getBitWidth() == Long.SIZE;
    return isTime || !of(type).equals(type);
  }

  private static ArrowType of(ArrowType type) {
    if (type instanceof ArrowType.Timestamp time && time.getUnit() == TimeUnit.NANOSECOND) {
      return new ArrowType.Timestamp(TimeUnit.MICROSECOND, time.getTimezone());
    }
    if (type instanceof ArrowType.Duration time && time.getUnit() == TimeUnit.NANOSECOND) {
      return new ArrowType.Duration(TimeUnit.MICROSECOND);
    }
    if (type instanceof ArrowType.Time time && time.getUnit() == TimeUnit.MICROSECOND) {
      // Spark's TIME type counts nanoseconds since midnight.
      return new ArrowType.Time(TimeUnit.NANOSECOND, Long.SIZE);
    }
    if (type instanceof ArrowType.Int number && !number.getIsSigned()) {
      return number.getBitWidth() == Long.SIZE
          ? new ArrowType.Decimal(20, 0, 2 * Long.SIZE)
          : new ArrowType.Int(2 * number.getBitWidth(), true);
    }
    if (type instanceof ArrowType.Decimal number
        && number.getBitWidth() == 4 * Long.SIZE
        && number.getPrecision() <= MOST_DIGITS) {
      return new ArrowType.Decimal(number.getPrecision(), number.getScale(), 2 * Long.SIZE);
    }
    return type;
  }

  /**
   * Returns the columns with types that Spark has, and closes the given columns.
   *
   * @throws IllegalArgumentException if a value would lose a digit
   */
  public VectorSchemaRoot apply(VectorSchemaRoot columns) {
    if (!needed) {
      return columns;
    }
    try (columns;
        ArrowRecordBatch batch = EncodedBatch.batchOf(columns)) {
      List<Field> fields = columns.getSchema().getFields();
      Iterator<ArrowFieldNode> nodes = batch.getNodes().iterator();
      List<ArrowBuf> buffers = new ArrayList<>(batch.getBuffers());
      ListIterator<ArrowBuf> next = buffers.listIterator();
      fields.forEach(field -> convert(field, field.getName(), nodes, next));
      VectorSchemaRoot made =
          VectorSchemaRoot.create(
              new Schema(fields.stream().map(Conversion::of).toList()), allocator);
      try (ArrowRecordBatch converted =
          new ArrowRecordBatch(batch.getLength(), batch.getNodes(), buffers)) {
        new VectorLoader(made).load(converted);
      }
      return made;
    }
  }

  /**
   * Replaces the values of a field and of the fields inside it. The nodes and buffers of a field
   * come directly before those of its children.
   */
  private void convert(
      Field field, String column, Iterator<ArrowFieldNode> nodes, ListIterator<ArrowBuf> buffers) {
    ArrowFieldNode node = nodes.next();
    int count = TypeLayout.getTypeBufferCount(field.getType());
    if (isOf(field.getType())) { // a converted type has two buffers: validity and values
      ArrowBuf validity = buffers.next();
      ArrowBuf values = buffers.next();
      buffers.set(converted(field.getType(), column, node, validity, values));
    } else {
      for (int i = 0; i < count; i++) {
        buffers.next();
      }
    }
    field.getChildren().forEach(child -> convert(child, column, nodes, buffers));
  }

  private ArrowBuf converted(
      ArrowType type, String column, ArrowFieldNode node, ArrowBuf validity, ArrowBuf values) {
    int rows = node.getLength();
    int width = of(type) instanceof ArrowType.Decimal ? 2 * Long.BYTES : Long.BYTES;
    int size = Math.multiplyExact(rows, width);
    ByteBuffer memory = pool.take(size).order(ByteOrder.LITTLE_ENDIAN);
    boolean nulls = node.getNullCount() != 0;
    for (int row = 0; row < rows; row++) {
      if (nulls && BitVectorHelper.get(validity, row) == 0) {
        continue;
      }
      if (!put(type, values, row, memory)) {
        throw new IllegalArgumentException(
            String.format(
                "%s: column \"%s\" has a value of type %s that Spark has no digits for; let its"
                    + " producers cast it: column.cast(%s, safe=False)",
                label, column, type, remedy(type)));
      }
    }
    return pool.block(memory, size).buffer(0, size);
  }

  /** Writes a value. Returns false if the value would lose a digit. */
  private static boolean put(ArrowType type, ArrowBuf from, int row, ByteBuffer to) {
    long at = (long) row * Long.BYTES;
    if (type instanceof ArrowType.Int number) {
      switch (number.getBitWidth()) {
        case Byte.SIZE -> to.putShort(row * Short.BYTES, (short) (from.getByte(row) & 0xff));
        case Short.SIZE -> to.putInt(row * Integer.BYTES, from.getShort(2L * row) & 0xffff);
        case Integer.SIZE -> to.putLong(row * Long.BYTES, from.getInt(4L * row) & 0xffffffffL);
        default -> put(from.getLong(at), 0, row, to);
      }
      return true;
    }
    if (type instanceof ArrowType.Decimal) {
      long high = from.getLong(4 * at + Long.BYTES);
      put(from.getLong(4 * at), high, row, to);
      long sign = high >> (Long.SIZE - 1);
      return from.getLong(4 * at + 2 * Long.BYTES) == sign
          && from.getLong(4 * at + 3 * Long.BYTES) == sign;
    }
    long value = from.getLong(at);
    if (type instanceof ArrowType.Time time) {
      boolean micros = time.getUnit() == TimeUnit.MICROSECOND;
      to.putLong(row * Long.BYTES, micros ? value * NANOS : value);
      return micros || value % NANOS == 0;
    }
    to.putLong(row * Long.BYTES, value / NANOS);
    return value % NANOS == 0;
  }

  /** Writes a decimal of 128 bits. */
  private static void put(long low, long high, int row, ByteBuffer to) {
    to.putLong(row * 2 * Long.BYTES, low);
    to.putLong(row * 2 * Long.BYTES + Long.BYTES, high);
  }

  private static String remedy(ArrowType type) {
    return type instanceof ArrowType.Decimal
        ? "pa.decimal128(38, scale)"
        : type instanceof ArrowType.Time
            ? "pa.time64(\"us\")"
            : type instanceof ArrowType.Duration ? "pa.duration(\"us\")" : "pa.timestamp(\"us\")";
  }
}
