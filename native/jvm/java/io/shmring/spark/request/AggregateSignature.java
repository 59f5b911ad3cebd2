package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Arguments of aggregates go, group by group, and a row of results comes for each: it stands beside the
 * group's key, which waits for it.
 */
public record AggregateSignature(
    StructType arguments, StructType keys, StructType results, SparkTypes types)
    implements Signature {
  @Override
  public Schema columns() {
    return types.schema(arguments);
  }

  @Override
  public Sent sent() {
    return Sent.all(columns());
  }

  @Override
  public AnswerHandler begin(int partition) {
    return new Answers(this);
  }

  /** Of one task. */
  public static final class Answers implements AnswerHandler {
    private final StructType results;
    private final UdfSignature.JoinedRows joined;

    Answers(AggregateSignature signature) {
      this.results = signature.results;
      this.joined = new UdfSignature.JoinedRows(signature.keys, signature.results);
    }

    /** A group follows. */
    public void begun(InternalRow key) {
      joined.add((UnsafeRow) key);
    }

    @Override
    public void sent(Batches.Vectors vectors) {}

    @Override
    public Optional<String> objection(Schema got) {
      return ResultSchema.difference(got, results);
    }

    @Override
    public Optional<String> answered(VectorSchemaRoot piece) {
      return NullCheck.objection(piece.getFieldVectors(), results.fields());
    }

    @Override
    public Optional<String> ended() {
      return Optional.empty();
    }

    @Override
    public java.util.Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      return joined.of(piece);
    }
  }
}
