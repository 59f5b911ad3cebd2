package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** Rows, one by one. */
public final class RowInput implements Input {
  private final Iterator<InternalRow> rows;
  private final Passage.OfRows passage;
  private UnsafeRow carried; // a row that did not fit into the batch before
  private long bytes;
  private long rowBytes; // of the last row, or of the one that is carried

  /**
   * @param passage of a signature that is for rows
   */
  public RowInput(Iterator<InternalRow> rows, Passage passage) {
    this.rows = rows;
    this.passage = (Passage.OfRows) passage;
  }

  @Override
  public boolean hasNext() {
    return carried != null || rows.hasNext();
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    bytes = 0;
    int written = 0;
    while (written < mostRows && bytes < mostBytes && hasNext()) {
      UnsafeRow row = carried;
      if (row == null) {
        row = passage.send(rows.next());
        rowBytes = row.getSizeInBytes() + (long) passage.kept();
      }
      if (writer.rows() > 0 && bytes + rowBytes > mostBytes) {
        carried = row.copy();
        break;
      }
      carried = null;
      writer.write(row);
      bytes += rowBytes;
      written++;
    }
    return written;
  }

  @Override
  public long bytes() {
    return bytes;
  }
}
