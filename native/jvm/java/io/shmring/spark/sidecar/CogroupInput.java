package io.shmring.spark.sidecar;

import io.shmring.spark.columns.RootWriter;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.CoGroupedIterator;
import scala.Tuple3;
import scala.collection.Iterator;

/** Two children's sorted rows by their keys: both sides of a key are a batch of one row. */
final class CogroupInput implements Input {
  private final Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> groups;
  private final UnsafeProjection left;
  private final UnsafeProjection right;

  /**
   * @param rows of the left child, and of the right one
   */
  CogroupInput(java.util.Iterator<Iterator<InternalRow>> rows, CogroupSide left, CogroupSide right) {
    this.groups =
        new CoGroupedIterator(left.groups(rows.next()), right.groups(rows.next()), left.keys());
    this.left = left.projection();
    this.right = right.projection();
  }

  @Override
  public boolean hasNext() {
    return groups.hasNext();
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> group = groups.next();
    Object[] lefts = rows(group._2(), left);
    Object[] rights = rows(group._3(), right);
    Object[] sides = {new GenericArrayData(lefts), new GenericArrayData(rights)};
    writer.write(new GenericInternalRow(sides));
    return Math.addExact(lefts.length, rights.length);
  }

  @Override
  public long bytes() {
    return 0; // a group is a request, whatever it has
  }

  @Override
  public boolean isJoined() {
    return false;
  }

  private static Object[] rows(Iterator<InternalRow> side, UnsafeProjection sent) {
    List<InternalRow> rows = new ArrayList<>();
    while (side.hasNext()) {
      rows.add(sent.apply(side.next()).copy());
    }
    return rows.toArray();
  }
}
