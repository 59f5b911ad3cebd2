package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import java.util.Iterator;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;

/** Rows that generated code writes itself, as many as it is let, whenever its iterator is asked. */
final class GeneratedInput implements Input {
  private final RowSink sink;
  private final Iterator<InternalRow> stops; // of the code: the sink again and again
  private int batchRows;
  private int taken; // rows of the writer that fill() has told of
  private long takenBytes;
  private long mostBytes; // of a writer's rows
  private long bytes;
  private boolean ended;

  GeneratedInput(RowSink sink, Iterator<InternalRow> stops) {
    this.sink = sink;
    this.stops = stops;
  }

  @Override
  public void writeTo(Supplier<RootWriter> next, int batchRows, long mostBytes) {
    this.batchRows = batchRows;
    this.mostBytes = mostBytes;
    sink.writeTo(next, batchRows);
  }

  @Override
  public boolean hasNext() {
    if (written() == taken) {
      write(taken + 1, taken + batchRows);
    }
    return written() > taken || sink.isFull();
  }

  private int written() {
    return sink.writer() == null ? 0 : sink.writer().rows();
  }

  /** Lets the code run until the writer has enough rows, or is full, or all is written. */
  private void write(int enough, int mostRows) {
    sink.limit(enough, mostRows, mostBytes);
    while (!sink.isEnough() && !ended) {
      if (stops.hasNext()) {
        stops.next();
      } else {
        ended = true; // its code must not run again
      }
    }
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    int before = taken;
    long bytesBefore = takenBytes;
    this.mostBytes = takenBytes + mostBytes;
    if (written() - taken < mostRows) {
      write(taken + mostRows, taken + mostRows);
    }
    taken = written();
    takenBytes = sink.bytes();
    bytes = takenBytes - bytesBefore;
    return taken - before;
  }

  @Override
  public long bytes() {
    return bytes;
  }

  @Override
  public void cut(RootWriter writer) {
    sink.cut();
    taken = 0;
    takenBytes = 0;
  }
}
