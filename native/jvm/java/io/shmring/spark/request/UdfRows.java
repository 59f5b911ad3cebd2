package io.shmring.spark.request;

import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** UDFs over rows: the arguments are computed from these. */
final class UdfRows extends UdfAnswers implements AnswerHandler.OfRows {
  private final UnsafeRows unsafe;
  private final UnsafeProjection arguments;
  private final UnsafeProjection results;
  private final RetainedRows waiting;
  private final UnsafeRowJoiner joiner;
  private int kept;

  UdfRows(UdfSignature signature, int partition) {
    super(signature.results());
    this.unsafe = new UnsafeRows(signature.rows());
    this.arguments = UnsafeProjection.create(signature.arguments(), signature.input());
    this.results = UnsafeProjection.create(signature.results());
    this.waiting = new RetainedRows(signature.rows().size());
    this.joiner = GenerateUnsafeRowJoiner.create(signature.rows(), signature.results());
    arguments.initialize(partition);
  }

  @Override
  public UnsafeRow send(InternalRow row) {
    UnsafeRow ready = unsafe.of(row);
    waiting.add(ready);
    kept = ready.getSizeInBytes();
    return arguments.apply(ready);
  }

  @Override
  public int kept() {
    return kept;
  }

  @Override
  public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
    Iterator<InternalRow> rows = piece.rowIterator();
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return rows.hasNext();
      }

      @Override
      public UnsafeRow next() {
        return joiner.join(waiting.remove(), results.apply(rows.next()));
      }
    };
  }
}
