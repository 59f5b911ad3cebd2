package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.request.Signature.OfRows;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** Writes an iterator's rows into batches, one by one. */
final class RowInput extends Input {
  private final Iterator<InternalRow> rows;
  private final OfRows sent;
  // Projected row that is not written yet, perhaps because the last batch was full; null if none.
  private UnsafeRow next;
  // Bytes of the last projected row, plus the bytes that its OfRows retains until the row's answer
  // comes.
  private long rowBytes;

  RowInput(Iterator<InternalRow> rows, OfRows sent) {
    this.rows = rows;
    this.sent = sent;
  }

  @Override
  boolean hasNext() {
    return next != null || rows.hasNext();
  }

  /** Projects a row. The next call of fill() writes this row first, then the iterator's rows. */
  void send(InternalRow row) {
    next = sent.send(row);
    rowBytes = next.getSizeInBytes() + (long) sent.kept();
  }

  @Override
  int fill(RootWriter writer, int mostRows) {
    int written = 0;
    while (written < mostRows && writer.hasRoom(1) && hasNext()) {
      if (next == null) {
        send(rows.next());
      }
      if (!writer.hasRoom(rowBytes)) {
        next = next.copy();
        break;
      }
      writer.write(next, rowBytes);
      next = null;
      written++;
      if (writer.isWhole()) {
        break;
      }
    }
    return written;
  }
}
