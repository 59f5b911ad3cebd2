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

/** Splits sorted rows into groups and cogroups, and projects them to the rows that are sent. */
public final class Groups {
  private Groups() {}

  /**
   * Describes a child whose rows are sent in groups.
   *
   * @param keys keys by which the child's rows are sorted and grouped
   * @param output the child's columns
   * @param columns expressions computed from each row, whose values are sent
   * @param sent types of the rows that are sent
   */
  public record FrameSide(
      Seq<Expression> keys, Seq<Attribute> output, Seq<Expression> columns, StructType sent)
      implements Serializable {
    /**
     * Returns a side that sends some of the child's columns unchanged.
     *
     * @param columns attributes of the child
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
     * Returns the columns as a sequence of expressions.
     *
     * @param columns expressions, in a list of any type
     */
    public static Seq<Expression> expressions(List<?> columns) {
      return CollectionConverters.asScala(columns.stream().map(Expression.class::cast).toList())
          .toList();
    }

    /**
     * Returns the names and types of columns.
     *
     * @param columns attributes
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

    /** Pairs the groups of two children that have equal keys; the keys are attributes. */
    @SuppressWarnings("unchecked")
    Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> cogroups(
        java.util.Iterator<InternalRow> rows,
        FrameSide right,
        java.util.Iterator<InternalRow> rightRows) {
      return new CoGroupedIterator(
          groups(rows), right.groups(rightRows), (Seq<Attribute>) (Seq<?>) keys);
    }

    /** Returns a projection to the rows that are sent. */
    UnsafeProjection projection() {
      return UnsafeProjection.create(columns, output);
    }
  }

  /**
   * Writes sorted rows in frames: one for each group, two for each cogroup. A batch has rows of one
   * frame, unless both sides of a cogroup are sent as lists.
   */
  public static final class FrameInput extends Batches.Input {
    private final Iterator<? extends Product> groups; // pairs of a key and the rows of each side
    private final List<UnsafeProjection> sent; // projection of each side
    private final BiFunction<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> begun;
    private final boolean isWhole;
    private Product group;
    private int side; // number of the side that the next rows belong to
    private Batches.Input rows; // rest of the current frame; null before a frame begins

    /**
     * @param children rows of one side, or of two
     * @param begun function that takes a group's key and rows, and returns the rows to send
     * @param isWhole whether each group or cogroup is one batch, however large; else batches are as
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

    /** Writes rows of a frame; a side without rows gets an empty batch. */
    @Override
    @SuppressWarnings("unchecked") // elements after the key are iterators of rows
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
