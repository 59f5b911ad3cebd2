package io.shmring.spark.sidecar;

import java.io.Serializable;
import java.util.List;
import org.apache.arrow.vector.types.pojo.Schema;

/** What one kind of Spark's functions sends to a sidecar, and what it makes of the answers. */
interface Signature extends Serializable {
  /**
   * Requests that a batch is sent as, one after the other.
   *
   * @param columns of the batch that go
   * @param schema of the request
   */
  record Part(List<Integer> columns, Schema schema) {}

  /** Of the rows of a batch. */
  Schema columns();

  List<Part> parts();

  /** For one task. */
  Passage begin(int partition);
}
