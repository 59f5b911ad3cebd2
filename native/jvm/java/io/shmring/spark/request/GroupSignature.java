package io.shmring.spark.request;

import java.util.Map;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import scala.collection.immutable.Seq;

/**
 * The columns of a frame go group by group, without a key that is none of them, and the answer's
 * columns come instead.
 *
 * @param values what goes of a row
 * @param input the child's output
 */
public record GroupSignature(MapSignature map, Seq<Expression> values, Seq<Attribute> input)
    implements Signature {
  /** Of the schema: sidecars/groups.py says what it means. */
  private static final Map<String, String> GROUP = Map.of("shmring.group", "1");

  @Override
  public Schema columns() {
    return map.columns();
  }

  @Override
  public Sent sent() {
    Sent sent = map.sent();
    return new Sent(sent.columns(), new Schema(sent.schema().getFields(), GROUP));
  }

  @Override
  public AnswerHandler begin(int partition) {
    UnsafeProjection sent = UnsafeProjection.create(values, input);
    return map.begin(sent::apply);
  }
}
