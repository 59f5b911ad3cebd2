package io.shmring.spark.sidecar;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.types.StructType;

/** UDFs over rows: the arguments are computed from these. */
final class UdfRows extends UdfPassage implements Passage.OfRows {
  private final UnsafeRows unsafe;
  private final UnsafeProjection arguments;
  private final UnsafeProjection result;
  private final KeptRows waiting;
  private final List<UnsafeRowJoiner> joiners = new ArrayList<>(); // for each UDF
  private int kept;

  UdfRows(UdfSignature signature, int partition) {
    super(signature.uses().size(), signature.result());
    this.unsafe = new UnsafeRows(signature.rows());
    this.arguments = UnsafeProjection.create(signature.arguments(), signature.input());
    this.result = UnsafeProjection.create(signature.result());
    this.waiting = new KeptRows(signature.rows().size());
    arguments.initialize(partition);
    StructType joined = signature.rows();
    for (int i = 0; i < signature.uses().size(); i++) {
      joiners.add(GenerateUnsafeRowJoiner.create(joined, signature.result()));
      joined = joined.add(signature.result().apply(0));
    }
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
  UnsafeRow joined(List<KeptRows> earlier, InternalRow last) {
    UnsafeRow row = waiting.remove();
    for (int i = 0; i < earlier.size(); i++) {
      row = joiners.get(i).join(row, earlier.get(i).remove());
    }
    return joiners.get(earlier.size()).join(row, result.apply(last));
  }

  @Override
  void batchEnded() {}
}
