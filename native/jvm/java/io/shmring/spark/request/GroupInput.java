package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.util.List;
import java.util.function.BiFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import scala.Product;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Splits sorted rows into groups or cogroups, and writes them into batches. A group is one frame of
 * rows; a cogroup is two frames, one for each side. A batch has rows of one frame only, unless both
 * sides of a cogroup are sent as lists.
 */
public final class GroupInput extends Input {
  private final Iterator<? extends Product> groups; // pairs of a key and the rows of each side
  private final List<UnsafeProjection> sent; // projection of each side
  private final BiFunction<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> begun;
  private final boolean isWhole;
  private Product group;
  private int side; // number of the side that the next rows belong to
  private Input rows; // rest of the current frame; null before a frame begins

  /**
   * @param children rows of one side, or of two
   * @param begun function that takes a group's key and rows, and returns the rows to send
   * @param isWhole whether each group or cogroup is one batch, however large; else batches are as
   *     large as Spark's own
   */
  public GroupInput(
      List<java.util.Iterator<InternalRow>> children,
      List<GroupedSide> sides,
      BiFunction<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> begun,
      boolean isWhole) {
    GroupedSide first = sides.get(0);
    this.groups =
        sides.size() == 1
            ? first.groups(children.get(0))
            : first.cogroups(children.get(0), sides.get(1), children.get(1));
    this.sent = sides.stream().map(GroupedSide::projection).toList();
    this.begun = begun;
    this.isWhole = isWhole;
  }

  @Override
  boolean hasNext() {
    return rows != null || side > 0 || groups.hasNext();
  }

  /** Returns the side of the next rows: 0, or 1 for the right side of a cogroup. */
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
      rows = new RowInput(CollectionConverters.asJava(frame), sent.get(side)::apply);
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

  /** Whether a sidecar gets each group, or cogroup, as one batch. */
  boolean isWhole() {
    return isWhole;
  }

  /** Whether each batch has one row, with one list of rows for each side of a cogroup. */
  boolean isOfLists() {
    return isWhole && sent.size() > 1;
  }
}
