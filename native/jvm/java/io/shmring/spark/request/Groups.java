package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.request.Signature.AnswerHandler;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.CoGroupedIterator;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Groups of rows, and cogroups: what is sent of them, and what comes of the answers. */
public final class Groups {
  private Groups() {}

  /**
   * The columns of a frame go group by group, without a key that is none of them, and the answer's
   * columns come instead.
   *
   * @param values what goes of a row
   * @param input the child's output
   */
  public record GroupSignature(MapSignature map, Seq<Expression> values, Seq<Attribute> input)
      implements Signature {
    /** Of the schema: sidecars/wire.py says what it means. */
    private static final Map<String, String> GROUP = Map.of("shmring.group", "1");

    @Override
    public Schema columns() {
      return map.columns();
    }

    @Override
    public Sent sent() {
      Sent sent = map.sent();
      return new Sent(sent.columns(), new Schema(sent.schema().getFields(), GROUP));
    }

    @Override
    public AnswerHandler begin(int partition) {
      UnsafeProjection sent = UnsafeProjection.create(values, input);
      return map.begin(sent::apply);
    }
  }

  /** Sorted rows in groups of one key each: a group is a batch, however large. */
  public static final class GroupInput implements Batches.Input {
    private final Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups;
    private final AnswerHandler.OfRows handler;
    private long bytes;

    /**
     * @param groups with their keys
     * @param handler of a signature that is for rows
     */
    public GroupInput(
        Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups, AnswerHandler handler) {
      this.groups = groups;
      this.handler = (AnswerHandler.OfRows) handler;
    }

    @Override
    public boolean hasNext() {
      return groups.hasNext();
    }

    @Override
    public int fill(RootWriter writer, int mostRows, long mostBytes) {
      Iterator<InternalRow> rows = groups.next()._2();
      int written = 0;
      bytes = 0;
      while (rows.hasNext()) {
        UnsafeRow row = handler.send(rows.next());
        writer.write(row);
        bytes += row.getSizeInBytes();
        written++;
      }
      return written;
    }

    @Override
    public long bytes() {
      return bytes;
    }

    @Override
    public boolean isJoined() {
      return false;
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

    Iterator<Tuple2<InternalRow, Iterator<InternalRow>>> groups(Iterator<InternalRow> rows) {
      return GroupedIterator.apply(rows, keys, output);
    }

    /** The rows of this child and of another one, by the keys of both, which are attributes. */
    @SuppressWarnings("unchecked")
    Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> cogroups(
        Iterator<InternalRow> rows, FrameSide right, Iterator<InternalRow> rightRows) {
      return new CoGroupedIterator(
          groups(rows), right.groups(rightRows), (Seq<Attribute>) (Seq<?>) keys);
    }

    /** Makes what goes of a row. */
    UnsafeProjection projection() {
      return UnsafeProjection.create(columns, output);
    }

    /** What makes batches of its rows. */
    Signature.AnswerHandler handler() {
      return new MapSignature.Rows(
          "", ResultSchema.ColumnMapping.BY_PLACE, new StructType(), projection()::apply);
    }
  }

  /**
   * Sorted rows in frames: one of each group, or two of each cogroup. Each batch is of one frame,
   * and as large as Spark's own.
   */
  public static final class FrameInput implements Batches.Input {
    private final Iterator<? extends Product> groups; // a key, and the rows of each side
    private final List<Signature.AnswerHandler> handlers; // of the sides
    private final Consumer<InternalRow> begun;
    private Product group;
    private int side; // whose rows are next
    private Batches.Input rows; // null where a frame begins
    private long bytes;

    /**
     * @param children rows of one side, or of two
     * @param begun gets the key of each group
     */
    public FrameInput(
        List<Iterator<InternalRow>> children, List<FrameSide> sides, Consumer<InternalRow> begun) {
      FrameSide first = sides.get(0);
      this.groups =
          sides.size() == 1
              ? first.groups(children.get(0))
              : first.cogroups(children.get(0), sides.get(1), children.get(1));
      this.handlers = sides.stream().map(FrameSide::handler).toList();
      this.begun = begun;
    }

    @Override
    public boolean hasNext() {
      return rows != null || side > 0 || groups.hasNext();
    }

    @Override
    public int side() {
      return side;
    }

    /** Writes a batch without rows where a side has none. */
    @Override
    @SuppressWarnings("unchecked") // what stands behind the key
    public int fill(RootWriter writer, int mostRows, long mostBytes) {
      if (rows == null) {
        if (side == 0) {
          group = groups.next();
          begun.accept((InternalRow) group.productElement(0));
        }
        Iterator<InternalRow> frame = (Iterator<InternalRow>) group.productElement(1 + side);
        rows = Batches.Input.ofRows(CollectionConverters.asJava(frame), handlers.get(side));
      }
      int written = rows.fill(writer, mostRows, mostBytes);
      bytes = rows.bytes();
      if (!rows.hasNext()) {
        rows = null;
        side = (side + 1) % handlers.size();
      }
      return written;
    }

    @Override
    public boolean goesOn() {
      return rows != null;
    }

    @Override
    public long bytes() {
      return bytes;
    }

    @Override
    public boolean isJoined() {
      return false;
    }
  }
}
