package io.shmring.spark.request;

import io.shmring.sidecar.SidecarClient;
import io.shmring.spark.columns.RootWriter;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.execution.CoGroupedIterator;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Groups and cogroups of rows: what is sent of them, and what comes of the answers. */
public final class Groups {
  private Groups() {}

  /**
   * Two children's sorted rows by their keys: both sides of a key are a batch of one row with two lists,
   * whose elements are their rows.
   */
  public static final class CogroupInput extends Batches.Input {
    private final Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> groups;
    private final UnsafeProjection[] sent; // of the sides
    private final StructType[] types; // of that
    private SidecarClient client;
    private long rows; // of the last cogroup, which is a request, whatever it has
    private long leastBits; // of these rows

    public CogroupInput(List<java.util.Iterator<InternalRow>> children, List<FrameSide> sides) {
      this.groups = sides.get(0).cogroups(children.get(0), sides.get(1), children.get(1));
      this.sent = sides.stream().map(FrameSide::projection).toArray(UnsafeProjection[]::new);
      this.types = sides.stream().map(FrameSide::sent).toArray(StructType[]::new);
    }

    /** The types of such a row. */
    public static StructType columns(FrameSide left, FrameSide right) {
      return new StructType()
          .add("left", new ArrayType(left.sent(), false), false)
          .add("right", new ArrayType(right.sent(), false), false);
    }

    @Override
    boolean hasNext() {
      return groups.hasNext();
    }

    @Override
    void begin(SidecarClient client) {
      this.client = client;
    }

    @Override
    int fill(RootWriter writer, int mostRows, long mostBytes) {
      Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> group = groups.next();
      rows = 0;
      leastBits = 0;
      long most = client.requestRingBytes() / 2;
      Object[] lefts = rows(group._2(), 0, most);
      Object[] rights = rows(group._3(), 1, most);
      client.checkSize(rows, leastBytes());
      Object[] sides = {new GenericArrayData(lefts), new GenericArrayData(rights)};
      writer.write(new GenericInternalRow(sides));
      return Math.addExact(lefts.length, rights.length);
    }

    @Override
    boolean isJoined() {
      return false;
    }

    private long leastBytes() {
      return leastBits / Byte.SIZE;
    }

    /** A side's rows. Those of a cogroup that fits no request are counted, and none of them kept. */
    private Object[] rows(Iterator<InternalRow> rowsOfSide, int side, long mostBytes) {
      List<InternalRow> kept = new ArrayList<>();
      while (rowsOfSide.hasNext()) {
        UnsafeRow row = sent[side].apply(rowsOfSide.next());
        rows++;
        leastBits += LeastBits.of(types[side], row);
        if (leastBytes() <= mostBytes) {
          kept.add(row.copy());
        } else {
          kept = List.of();
        }
      }
      return kept.toArray();
    }
  }

  /** Bits that a row takes in vectors at the least: its values and offsets, and no bit for a null. */
  private static final class LeastBits {
    private static final int OFFSET = 32;

    private LeastBits() {}

    static long of(StructType types, SpecializedGetters values) {
      StructField[] fields = types.fields();
      long bits = 0;
      for (int i = 0; i < fields.length; i++) {
        bits += value(fields[i].dataType(), values, i);
      }
      return bits;
    }

    private static long elements(DataType type, ArrayData values) {
      long bits = 0;
      for (int i = 0; i < values.numElements(); i++) {
        bits += value(type, values, i);
      }
      return bits;
    }

    // CHANGE: a new type between Spark and Arrow
    private static long value(DataType type, SpecializedGetters values, int at) {
      if (type instanceof StructType struct) {
        return values.isNullAt(at) ? 0 : of(struct, values.getStruct(at, struct.size()));
      }
      if (type instanceof ArrayType array) {
        return OFFSET
            + (values.isNullAt(at) ? 0 : elements(array.elementType(), values.getArray(at)));
      }
      if (type instanceof MapType map) {
        return OFFSET + (values.isNullAt(at) ? 0 : entries(map, values.getMap(at)));
      }
      if (type instanceof StringType || type instanceof BinaryType) {
        // The lower half of the word is the length: a binary would be copied to be asked for its own.
        return OFFSET + (values.isNullAt(at) ? 0 : (int) values.getLong(at) * (long) Byte.SIZE);
      }
      return type instanceof BooleanType ? 1 : type.defaultSize() * (long) Byte.SIZE;
    }

    private static long entries(MapType types, MapData map) {
      return elements(types.keyType(), map.keyArray())
          + elements(types.valueType(), map.valueArray());
    }
  }

  /**
   * A child whose rows go in groups.
   *
   * @param keys which the child's rows are sorted by
   * @param output the child's
   * @param columns what goes of a row
   * @param sent the types of that
   */
  public record FrameSide(
      Seq<Expression> keys, Seq<Attribute> output, Seq<Expression> columns, StructType sent)
      implements Serializable {
    /**
     * A child of which columns go as they are.
     *
     * @param columns all of which are attributes
     */
    public static FrameSide of(
        Seq<Attribute> keys, Seq<Attribute> output, List<? extends Expression> columns) {
      return new FrameSide(
          expressions(CollectionConverters.asJava(keys)),
          output,
          expressions(columns),
          types(columns));
    }

    /**
     * @param columns which Java need not know as expressions
     */
    public static Seq<Expression> expressions(List<?> columns) {
      return CollectionConverters.asScala(columns.stream().map(Expression.class::cast).toList())
          .toList();
    }

    /**
     * @param columns all of which are attributes
     */
    public static StructType types(List<? extends Expression> columns) {
      StructType types = new StructType();
      for (Expression column : columns) {
        types = types.add(((Attribute) column).name(), column.dataType(), column.nullable());
      }
      return types;
    }

    Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(
        java.util.Iterator<InternalRow> rows) {
      return GroupedIterator.apply(CollectionConverters.asScala(rows), keys, output);
    }

    /** The rows of this child and of another one, by the keys of both, which are attributes. */
    @SuppressWarnings("unchecked")
    Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> cogroups(
        java.util.Iterator<InternalRow> rows,
        FrameSide right,
        java.util.Iterator<InternalRow> rightRows) {
      return new CoGroupedIterator(
          groups(rows), right.groups(rightRows), (Seq<Attribute>) (Seq<?>) keys);
    }

    /** Makes what goes of a row. */
    UnsafeProjection projection() {
      return UnsafeProjection.create(columns, output);
    }
  }

  /** Sorted rows in frames: one of each group, or two of each cogroup. Each batch is of one frame. */
  public static final class FrameInput extends Batches.Input {
    private final Iterator<? extends Product> groups; // a key, and the rows of each side
    private final List<UnsafeProjection> sent; // of the sides
    private final BiFunction<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> begun;
    private final boolean isWhole;
    private Product group;
    private int side; // whose rows are next
    private Batches.Input rows; // null where a frame begins

    /**
     * @param children rows of one side, or of two
     * @param begun gets the key of each group, and its rows, and gives what goes of a side
     * @param isWhole whether a frame, of the only side, is one batch, however large; else batches are as
     *     large as Spark's own
     */
    public FrameInput(
        List<java.util.Iterator<InternalRow>> children,
        List<FrameSide> sides,
        BiFunction<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> begun,
        boolean isWhole) {
      FrameSide first = sides.get(0);
      this.groups =
          sides.size() == 1
              ? first.groups(children.get(0))
              : first.cogroups(children.get(0), sides.get(1), children.get(1));
      this.sent = sides.stream().map(FrameSide::projection).toList();
      this.begun = begun;
      this.isWhole = isWhole;
    }

    @Override
    boolean hasNext() {
      return rows != null || side > 0 || groups.hasNext();
    }

    @Override
    int side() {
      return side;
    }

    /** Writes a batch without rows where a side has none. */
    @Override
    @SuppressWarnings("unchecked") // what stands behind the key
    int fill(RootWriter writer, int mostRows, long mostBytes) {
      if (rows == null) {
        if (side == 0) {
          group = groups.next();
        }
        Iterator<InternalRow> frame =
            begun.apply(
                (InternalRow) group.productElement(0),
                (Iterator<InternalRow>) group.productElement(1 + side));
        rows = new Batches.RowInput(CollectionConverters.asJava(frame), sent.get(side)::apply);
      }
      int written =
          isWhole
              ? rows.fill(writer, Integer.MAX_VALUE, Long.MAX_VALUE)
              : rows.fill(writer, mostRows, mostBytes);
      bytes = rows.bytes;
      if (!rows.hasNext()) {
        rows = null;
        side = (side + 1) % sent.size();
      }
      return written;
    }

    @Override
    boolean goesOn() {
      return rows != null;
    }

    @Override
    boolean isJoined() {
      return false;
    }
  }
}
