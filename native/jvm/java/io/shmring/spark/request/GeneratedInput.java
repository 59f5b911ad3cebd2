package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import java.util.Iterator;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Lets the child's generated code write rows into batches. Each call of the iterator over the code
 * runs the code until enough rows are written.
 */
final class GeneratedInput extends Input {
  private final RowSink sink;
  // Iterator over the generated code: hasNext() runs the code until the sink has enough rows, and
  // then next() returns the sink. If the code ends before that, hasNext() returns false.
  private final Iterator<InternalRow> stops;
  private int batchRows;
  private int taken; // rows in the sink's oldest writer that fill() has already counted
  private boolean ended;

  GeneratedInput(RowSink sink, Iterator<InternalRow> stops) {
    this.sink = sink;
    this.stops = stops;
  }

  @Override
  void writeTo(Supplier<RootWriter> next, int batchRows) {
    this.batchRows = batchRows;
    sink.writeTo(next, batchRows);
  }

  @Override
  boolean hasNext() {
    if (sink.rows() == taken) {
      write(taken + 1, taken + batchRows);
    }
    return sink.rows() > taken || sink.isFull();
  }

  /** Lets the code run until the writer has enough rows or is full, or all rows are written. */
  private void write(int enough, int mostRows) {
    sink.limit(enough, mostRows);
    while (!sink.isEnough() && !ended) {
      if (stops.hasNext()) {
        stops.next();
      } else {
        ended = true; // an iterator at its end must not run its code again
      }
    }
    sink.copySelected();
  }

  @Override
  int fill(RootWriter writer, int mostRows) {
    int before = taken;
    if (sink.rows() - taken < mostRows) {
      write(taken + mostRows, taken + mostRows);
    }
    taken = sink.rows();
    return taken - before;
  }

  @Override
  void cut() {
    sink.cut();
    taken = 0;
  }
}
