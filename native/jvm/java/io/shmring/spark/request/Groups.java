package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.io.Serializable;
import java.util.List;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.execution.CoGroupedIterator;
import org.apache.spark.sql.execution.GroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Groups and cogroups of rows: what is sent of them. */
public final class Groups {
  private Groups() {}

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

  /**
   * Sorted rows in frames: one of each group, or two of each cogroup. Each batch is of one frame, but
   * where both sides of a cogroup go as lists.
   */
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
     * @param isWhole whether a group, or cogroup, is one batch, however large; else batches are as large
     *     as Spark's own
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
    int fill(RootWriter writer, int mostRows) {
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
      int written = rows.fill(writer, mostRows);
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
    boolean isOfGroups() {
      return true;
    }

    @Override
    boolean isWhole() {
      return isWhole;
    }

    @Override
    boolean isOfLists() {
      return isWhole && sent.size() > 1;
    }
  }
}
