package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import java.util.Iterator;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.InternalRow;

/** What a stage gives that writes its rows itself where it is generated, and else gives them. */
public final class StageInput implements Input {
  private final Iterator<InternalRow> stage;
  private final AnswerHandler handler;
  private Optional<Input> input = Optional.empty();
  private Supplier<RootWriter> next;
  private int batchRows;
  private long mostBytes;

  /**
   * @param handler of a signature that is for rows, and sends them as they are
   */
  public StageInput(Iterator<InternalRow> stage, AnswerHandler handler) {
    this.stage = stage;
    this.handler = handler;
  }

  @Override
  public void writeTo(Supplier<RootWriter> next, int batchRows, long mostBytes) {
    this.next = next;
    this.batchRows = batchRows;
    this.mostBytes = mostBytes;
  }

  @Override
  public boolean hasNext() {
    if (input.isEmpty() && stage.hasNext()) {
      InternalRow first = stage.next();
      input =
          Optional.of(
              first instanceof RowSink sink
                  ? new GeneratedInput(sink, stage)
                  : new RowInput(first, stage, handler));
      input.get().writeTo(next, batchRows, mostBytes);
    }
    return input.isPresent() && input.get().hasNext();
  }

  @Override
  public int fill(RootWriter writer, int mostRows, long mostBytes) {
    return input.orElseThrow().fill(writer, mostRows, mostBytes);
  }

  @Override
  public long bytes() {
    return input.orElseThrow().bytes();
  }

  @Override
  public void cut(RootWriter writer) {
    input.orElseThrow().cut(writer);
  }
}
