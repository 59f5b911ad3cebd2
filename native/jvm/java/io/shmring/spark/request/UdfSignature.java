package io.shmring.spark.request;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.SparkTypes;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * UDFs beside each other: their arguments go, each of them once, and the results come beside the row,
 * which waits here.
 *
 * @param uses the UDFs
 * @param arguments that are computed from the input's attributes
 * @param places of the arguments in the input, all of which is written; none if rows are
 * @param input the child's output; rows are its types
 * @param results a column for each of the UDFs
 */
public record UdfSignature(
    List<UdfUse> uses,
    Seq<Expression> arguments,
    List<Integer> places,
    Seq<Attribute> input,
    StructType rows,
    StructType results,
    SparkTypes types)
    implements Signature {
  /** Of the schema: sidecars/wire.py says what both mean. */
  private static final String CALLS = "shmring.calls";

  /** The sidecar casts its results to this, as Spark's workers do. */
  private static final String ANSWER = "shmring.answer";

  @Override
  public Schema columns() {
    return schema(isOfColumns() ? input : arguments);
  }

  @Override
  public Sent sent() {
    SparkTypes cast = new SparkTypes("UTC", types.large()); // theirs is of this zone
    byte[] answer = EncodedBatch.schemaBytes(cast.schema(results));
    Map<String, String> metadata = // in order: requests of one schema may be joined
        new TreeMap<>(
            Map.of(CALLS, calls(), ANSWER, Base64.getEncoder().encodeToString(answer)));
    return new Sent(
        isOfColumns() ? places : IntStream.range(0, arguments.size()).boxed().toList(),
        new Schema(schema(arguments).getFields(), metadata));
  }

  private boolean isOfColumns() {
    return !places.isEmpty();
  }

  /** Of columns, by their places: two may have one name. */
  public static StructType types(Seq<? extends Expression> columns) {
    StructType types = new StructType();
    for (Expression column : CollectionConverters.asJava(columns)) {
      types = types.add("_" + types.size(), column.dataType());
    }
    return types;
  }

  private Schema schema(Seq<? extends Expression> written) {
    return types.schema(types(written));
  }

  private String calls() {
    ArrayNode calls = JsonNodeFactory.instance.arrayNode();
    for (UdfUse use : uses) {
      ArrayNode call = calls.addArray();
      for (int i = 0; i < use.arguments().size(); i++) {
        call.addArray().add(use.names().get(i)).add(use.arguments().get(i));
      }
    }
    return calls.toString();
  }

  @Override
  public AnswerHandler begin(int partition) {
    return isOfColumns() ? new UdfColumns(this) : new UdfRows(this, partition);
  }
}
