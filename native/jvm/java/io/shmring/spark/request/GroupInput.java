package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import scala.Tuple2;
import scala.collection.Iterator;

/** Sorted rows in groups of one key each: a group is a batch, however large. */
public final class GroupInput implements Input {
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
