package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** Rows, one by one. */
public final class RowInput implements Input {
  private final Iterator<InternalRow> rows;
  private final AnswerHandler.OfRows handler;
  private UnsafeRow next; // what goes of a row that was taken and did not fit the batch before
  private long bytes;
  private long rowBytes; // of the last row that was taken

  /**
   * @param handler of a signature that is for rows
   */
  public RowInput(Iterator<InternalRow> rows, AnswerHandler handler) {
    this.rows = rows;
    this.handler = (AnswerHandler.OfRows) handler;
  }

  /**
   * @param first of the rows, which has been taken already
   */
  RowInput(InternalRow first, Iterator<InternalRow> rows, AnswerHandler handler) {
    this(rows, handler);
    send(first);
  }

  @Override
  public boolean hasNext() {
    return next != null || rows.hasNext();
  }

  private void send(InternalRow row) {
    next = handler.send(row);
    rowBytes = next.getSizeInBytes() + (long) handler.kept();
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    bytes = 0;
    int written = 0;
    while (written < mostRows && bytes < mostBytes && hasNext()) {
      if (next == null) {
        send(rows.next());
      }
      if (writer.rows() > 0 && bytes + rowBytes > mostBytes) {
        next = next.copy();
        break;
      }
      writer.write(next);
      next = null;
      bytes += rowBytes;
      written++;
      if (writer.isWhole(bytes)) {
        break;
      }
    }
    return written;
  }

  @Override
  public long bytes() {
    return bytes;
  }
}
