package io.shmring.spark.sidecar;

import io.shmring.arrow.EncodedBatch;
import io.shmring.spark.columns.SparkTypes;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.GenerateUnsafeRowJoiner;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowJoiner;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * UDFs of one type: their arguments go, and the first column of each answer comes beside the row,
 * which waits here.
 *
 * @param uses the UDFs
 * @param arguments that are computed from the input's attributes
 * @param input the child's output; rows are its types
 * @param result of one column
 */
record UdfSignature(
    List<UdfUse> uses,
    Seq<Expression> arguments,
    Seq<Attribute> input,
    StructType rows,
    StructType result,
    SparkTypes types)
    implements Signature {
  /** Of the schema: the answer's, in base64. The sidecar casts its result, as Spark's workers do. */
  private static final String ANSWER = "shmring.answer";

  @Override
  public Schema columns() {
    StructType columns = new StructType();
    for (Expression argument : CollectionConverters.asJava(arguments)) {
      columns = columns.add("_" + columns.size(), argument.dataType());
    }
    return types.schema(columns);
  }

  @Override
  public List<Part> parts() {
    return uses.stream().map(use -> new Part(use.arguments(), request(use))).toList();
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
    return new Rows(this, partition);
  }

  private static final class Rows implements Passage {
    private final UdfSignature signature;
    private final UnsafeRows unsafe;
    private final UnsafeProjection arguments;
    private final UnsafeProjection result;
    private final KeptRows waiting;
    private final List<KeptRows> results = new ArrayList<>(); // of all UDFs but the last
    private final List<UnsafeRowJoiner> joiners = new ArrayList<>(); // for each UDF
    private final ArrayDeque<Integer> due = new ArrayDeque<>(); // rows, by request
    private int answered; // of the oldest request
    private int turn; // the UDF whose request that is
    private int kept;

    Rows(UdfSignature signature, int partition) {
      this.signature = signature;
      this.unsafe = new UnsafeRows(signature.rows);
      this.arguments = UnsafeProjection.create(signature.arguments, signature.input);
      this.result = UnsafeProjection.create(signature.result);
      this.waiting = new KeptRows(signature.rows.size());
      arguments.initialize(partition);
      StructField column = signature.result.apply(0);
      StructType joined = signature.rows;
      for (int i = 0; i < signature.uses.size(); i++) {
        joiners.add(GenerateUnsafeRowJoiner.create(joined, signature.result));
        joined = joined.add(column);
        if (i > 0) {
          results.add(new KeptRows(1));
        }
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
    public void sent(int rows) {
      due.add(rows);
    }

    @Override
    public Optional<String> objection(Schema got) {
      if (got.getFields().isEmpty()) {
        return Optional.of("without a column: expected one with the result for each row");
      }
      Schema first = new Schema(List.of(got.getFields().get(0)));
      return Expected.difference(first, signature.result)
          .map(why -> "with a column of another type than the UDF was declared with: " + why);
    }

    @Override
    public Optional<String> answered(int rows) {
      answered += rows;
      return answered > due.element() ? Optional.of(miscount()) : Optional.empty();
    }

    @Override
    public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      Iterator<UnsafeRow> values = Iterators.map(piece.rowIterator(), result::apply);
      if (turn == results.size()) {
        return Iterators.map(values, this::joined);
      }
      values.forEachRemaining(results.get(turn)::add);
      return Collections.emptyIterator();
    }

    private UnsafeRow joined(UnsafeRow last) {
      UnsafeRow row = waiting.remove();
      for (int i = 0; i < results.size(); i++) {
        row = joiners.get(i).join(row, results.get(i).remove());
      }
      return joiners.get(results.size()).join(row, last);
    }

    @Override
    public Optional<String> ended() {
      if (answered != due.element()) {
        return Optional.of(miscount());
      }
      due.remove();
      answered = 0;
      turn = turn == results.size() ? 0 : turn + 1;
      return Optional.empty();
    }

    private String miscount() {
      return String.format(
          "with another number of rows than a UDF must: expected %d, got %d",
          due.element(), answered);
    }
  }
}
