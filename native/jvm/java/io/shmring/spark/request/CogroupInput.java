package io.shmring.spark.request;

import io.shmring.sidecar.SidecarClient;
import io.shmring.spark.columns.RootWriter;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.execution.CoGroupedIterator;
import org.apache.spark.sql.types.StructType;
import scala.Tuple3;
import scala.collection.Iterator;

/** Two children's sorted rows by their keys: both sides of a key are a batch of one row. */
public final class CogroupInput implements Input {
  private final Iterator<Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>>> groups;
  private final UnsafeProjection left;
  private final UnsafeProjection right;
  private final StructType leftTypes;
  private final StructType rightTypes;
  private SidecarClient client;
  private long rows; // of the last cogroup
  private long leastBits; // of these rows

  /**
   * @param rows of the left child, and of the right one
   */
  public CogroupInput(java.util.Iterator<Iterator<InternalRow>> rows, CogroupSide left, CogroupSide right) {
    this.groups =
        new CoGroupedIterator(left.groups(rows.next()), right.groups(rows.next()), left.keys());
    this.left = left.projection();
    this.right = right.projection();
    this.leftTypes = left.sent();
    this.rightTypes = right.sent();
  }

  @Override
  public boolean hasNext() {
    return groups.hasNext();
  }

  @Override
  public void begin(SidecarClient client) {
    this.client = client;
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    Tuple3<InternalRow, Iterator<InternalRow>, Iterator<InternalRow>> group = groups.next();
    rows = 0;
    leastBits = 0;
    long most = client.requestRingBytes() / 2;
    Object[] lefts = rows(group._2(), left, leftTypes, most);
    Object[] rights = rows(group._3(), right, rightTypes, most);
    client.checkSize(rows, leastBytes());
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

  private long leastBytes() {
    return leastBits / Byte.SIZE;
  }

  /** A side's rows. Those of a cogroup that fits no request are counted, and none of them kept. */
  private Object[] rows(
      Iterator<InternalRow> side, UnsafeProjection sent, StructType types, long mostBytes) {
    List<InternalRow> kept = new ArrayList<>();
    while (side.hasNext()) {
      UnsafeRow row = sent.apply(side.next());
      rows++;
      leastBits += LeastBits.of(types, row);
      if (leastBytes() <= mostBytes) {
        kept.add(row.copy());
      } else {
        kept = List.of();
      }
    }
    return kept.toArray();
  }
}
