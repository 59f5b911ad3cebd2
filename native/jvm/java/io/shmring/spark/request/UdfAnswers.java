package io.shmring.spark.request;

import java.util.ArrayDeque;
import java.util.Optional;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.StructType;

/** Results of UDFs: as many as rows, which wait for them. */
abstract class UdfAnswers implements AnswerHandler {
  private final StructType results;
  private final ArrayDeque<Batches.Vectors> due = new ArrayDeque<>(); // by request
  private int answered; // of the oldest request

  UdfAnswers(StructType results) {
    this.results = results;
  }

  /** The rows that the last piece answers, until the next one comes. */
  final VectorSchemaRoot sentOf(int count) {
    return due.element().part(answered - count, count);
  }

  @Override
  public final void sent(Batches.Vectors vectors) {
    due.add(vectors);
  }

  @Override
  public final Optional<String> objection(Schema got) {
    return ResultSchema.difference(got, results)
        .map(why -> "with other columns than its UDFs were declared with: " + why);
  }

  @Override
  public final Optional<String> answered(VectorSchemaRoot piece) {
    answered += piece.getRowCount();
    return answered > due.element().rows()
        ? Optional.of(miscount())
        : NullCheck.objection(piece.getFieldVectors(), results.fields());
  }

  @Override
  public final Optional<String> ended() {
    if (answered != due.element().rows()) {
      return Optional.of(miscount());
    }
    due.remove();
    answered = 0;
    return Optional.empty();
  }

  private String miscount() {
    return String.format(
        "with another number of rows than a UDF must: expected %d, got %d",
        due.element().rows(), answered);
  }
}
