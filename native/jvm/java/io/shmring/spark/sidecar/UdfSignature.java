package io.shmring.spark.sidecar;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.SparkTypes;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * UDFs of one type: their arguments go, and the first column of each answer comes beside the row,
 * which waits here.
 *
 * @param uses the UDFs
 * @param arguments that are computed from the input's attributes
 * @param places of the arguments in the input, all of which is written; none if rows are
 * @param input the child's output; rows are its types
 * @param result of one column
 */
record UdfSignature(
    List<UdfUse> uses,
    Seq<Expression> arguments,
    List<Integer> places,
    Seq<Attribute> input,
    StructType rows,
    StructType result,
    SparkTypes types)
    implements Signature {
  /** Of the schema: the answer's, in base64. The sidecar casts its result, as Spark's workers do. */
  private static final String ANSWER = "shmring.answer";

  @Override
  public Schema columns() {
    Seq<? extends Expression> written = isOfColumns() ? input : arguments;
    StructType columns = new StructType();
    for (Expression column : CollectionConverters.asJava(written)) {
      columns = columns.add("_" + columns.size(), column.dataType());
    }
    return types.schema(columns);
  }

  @Override
  public List<Part> parts() {
    return uses.stream().map(use -> new Part(written(use), request(use))).toList();
  }

  private boolean isOfColumns() {
    return !places.isEmpty();
  }

  private List<Integer> written(UdfUse use) {
    return isOfColumns() ? use.arguments().stream().map(places::get).toList() : use.arguments();
  }

  private Schema request(UdfUse use) {
    StructType columns = new StructType();
    for (int argument : use.arguments()) {
      String name = use.names().get(columns.size());
      columns = columns.add(name, arguments.apply(argument).dataType());
    }
    SparkTypes cast = new SparkTypes("UTC", types.large()); // theirs is of this zone
    byte[] answer = EncodedBatch.schemaBytes(cast.schema(result));
    return new Schema(
        types.schema(columns).getFields(),
        Map.of(ANSWER, Base64.getEncoder().encodeToString(answer)));
  }

  @Override
  public Passage begin(int partition) {
    return isOfColumns() ? new UdfColumns(this) : new UdfRows(this, partition);
  }
}
