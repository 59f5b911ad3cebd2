package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.StructType;

/**
 * The two sides of a cogroup go as one row with two lists, whose elements are their rows, and the
 * answer's columns come instead.
 *
 * @param mapping how answers' columns become those of the output
 */
public record CogroupSignature(
    ColumnMapping mapping,
    StructType left,
    StructType right,
    StructType output,
    SparkTypes types)
    implements Signature {
  /** Of the schema: sidecars/groups.py says what it means. */
  private static final Map<String, String> COGROUP = Map.of("shmring.group", "2");

  @Override
  public Schema columns() {
    StructType sides =
        new StructType()
            .add("left", new ArrayType(left, false), false)
            .add("right", new ArrayType(right, false), false);
    return types.schema(sides);
  }

  @Override
  public Sent sent() {
    return new Sent(List.of(0, 1), new Schema(columns().getFields(), COGROUP));
  }

  @Override
  public AnswerHandler begin(int partition) {
    return new MapSignature.Answers("applyInArrow", mapping, output);
  }
}
