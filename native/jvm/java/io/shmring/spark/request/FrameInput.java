package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.util.List;
import java.util.function.Consumer;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.Product;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Sorted rows in frames: one of each group, or two of each cogroup. Each batch is of one frame, and as
 * large as Spark's own.
 */
public final class FrameInput implements Batches.Input {
  private final Iterator<? extends Product> groups; // a key, and the rows of each side
  private final List<AnswerHandler> handlers; // of the sides
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
