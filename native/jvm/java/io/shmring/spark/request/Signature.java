package io.shmring.spark.request;

import java.io.Serializable;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.arrow.vector.types.pojo.Schema;

/** What one kind of Spark's functions sends to a sidecar, and what it makes of the answers. */
public interface Signature extends Serializable {
  /**
   * What goes of a batch.
   *
   * @param columns which of its columns
   * @param schema of the request
   */
  record Sent(List<Integer> columns, Schema schema) {
    static Sent all(Schema schema) {
      return new Sent(IntStream.range(0, schema.getFields().size()).boxed().toList(), schema);
    }
  }

  /** Of the rows of a batch. */
  Schema columns();

  Sent sent();

  /** Of the sides of a cogroup. */
  default List<Signature> sides() {
    return List.of(this);
  }

  /** For one task. */
  AnswerHandler begin(int partition);
}
