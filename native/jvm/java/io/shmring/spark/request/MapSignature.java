package io.shmring.spark.request;

import io.shmring.spark.columns.ColumnRows;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.ResultSchema.ColumnMapping;
import io.shmring.spark.request.Signature.AnswerHandler;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * All columns go, and the answer's columns come instead of them.
 *
 * @param method of Spark's that the user called, for the text of an error
 * @param mapping how answers' columns become those of the output
 * @param batches what the batches are
 */
public record MapSignature(
    String method,
    ColumnMapping mapping,
    StructType input,
    StructType output,
    SparkTypes types,
    Map<String, String> batches)
    implements Signature {
  // Of the schema: sidecars/calls.py says what it means.
  public static final Map<String, String> BATCH = Map.of();
  public static final Map<String, String> GROUP = Map.of("shmring.group", "1");
  public static final Map<String, String> COGROUP = Map.of("shmring.group", "2");

  @Override
  public Schema columns() {
    return new Schema(types.schema(input).getFields(), batches);
  }

  @Override
  public AnswerHandler begin(int partition) {
    return new Rows(method, mapping, output, AnswerHandler.OfRows.unsafe(input));
  }

  /** What is sent of rows, and comes of the answers. */
  static class Rows implements AnswerHandler, AnswerHandler.OfRows {
    private final String method;
    final StructType output;
    private final ColumnMapping mapping;
    private final List<String> names;
    private final ColumnRows answers;
    private final AnswerHandler.OfRows send;
    private int[] places = {}; // of the output's columns, in the answers that come now

    Rows(String method, ColumnMapping mapping, StructType output, AnswerHandler.OfRows send) {
      this.method = method;
      this.mapping = mapping;
      this.names = List.of(output.fieldNames());
      this.output = output;
      this.answers = new ColumnRows(output);
      this.send = send;
    }

    @Override
    public UnsafeRow send(InternalRow row) {
      return send.send(row);
    }

    @Override
    public Optional<String> objection(Schema got) {
      return difference(got.getFields())
          .map(
              why ->
                  String.format(
                      "with other columns than %s was declared with: %s (expected %s; got %s)",
                      method, why, ResultSchema.inWords(output), ResultSchema.inWords(got)));
    }

    private Optional<String> difference(List<Field> got) {
      List<String> gotNames = got.stream().map(Field::getName).toList();
      if (got.isEmpty() && !method.equals("mapInArrow")) { // only rows need columns
        places = new int[] {};
        return Optional.empty();
      }
      return mapping
          .objection(gotNames, names)
          .or(
              () -> {
                places = mapping.places(gotNames, names);
                List<Field> chosen = Arrays.stream(places).mapToObj(got::get).toList();
                return ResultSchema.difference(chosen, output.fields(), mapping);
              });
    }

    @Override
    public ColumnarBatch columns(VectorSchemaRoot batch) {
      return FlatColumn.batch(batch, places);
    }

    @Override
    public Optional<String> answered(VectorSchemaRoot piece) {
      if (piece.getRowCount() == 0) {
        return Optional.empty();
      }
      if (places.length < names.size()) {
        return Optional.of(
            String.format(
                "with rows without columns, where %s was declared with %s",
                method, ResultSchema.inWords(output)));
      }
      List<FieldVector> chosen = Arrays.stream(places).mapToObj(piece::getVector).toList();
      return ResultSchema.NullCheck.objection(chosen, output.fields());
    }

    @Override
    public Iterator<UnsafeRow> receive(ColumnarBatch piece) {
      return piece.numRows() == 0 ? Collections.emptyIterator() : answers.of(piece);
    }
  }

  /**
   * All columns go to a function of Spark's own, and the answer's columns come instead of them.
   * Spark does not compare their types with the declared ones: it fails, or does not, when it reads
   * a value.
   *
   * @param inputs of batches the types; of groups, or cogroups, those of each side
   */
  public record PythonMapSignature(List<StructType> inputs, StructType output, SparkTypes types)
      implements Signature {
    @Override
    public List<Signature> sides() {
      return inputs.stream()
          .<Signature>map(input -> new PythonMapSignature(List.of(input), output, types))
          .toList();
    }

    @Override
    public Schema columns() {
      return types.schema(inputs.get(0));
    }

    @Override
    public Signature.AnswerHandler begin(int partition) {
      return new Rows(output, AnswerHandler.OfRows.unsafe(inputs.get(0)));
    }

    /** Which answers are of which batch only the function knows. */
    static class Rows extends MapSignature.Rows {
      private boolean isTyped; // what comes now is of the declared types
      private boolean isDeclared; // and has nulls only where they may be

      Rows(StructType output, AnswerHandler.OfRows send) {
        super("mapInArrow", ColumnMapping.BY_PLACE, output, send);
      }

      @Override
      public Optional<String> objection(Schema got) {
        int columns = got.getFields().size();
        isTyped =
            columns >= output.size()
                && ResultSchema.difference(
                        got.getFields(), output.fields(), ColumnMapping.BY_PLACE)
                    .isEmpty();
        return Optional.empty();
      }

      @Override
      public Optional<String> answered(VectorSchemaRoot piece) {
        isDeclared =
            isTyped
                && ResultSchema.NullCheck.objection(piece.getFieldVectors(), output.fields())
                    .isEmpty();
        return Optional.empty();
      }

      /** Those that are not as declared are read as Spark reads them, with its errors. */
      @Override
      public ColumnarBatch columns(VectorSchemaRoot piece) {
        if (isDeclared) {
          return FlatColumn.batch(piece, IntStream.range(0, output.size()).toArray());
        }
        ArrowColumnVector[] all =
            piece.getFieldVectors().stream()
                .map(ArrowColumnVector::new)
                .toArray(ArrowColumnVector[]::new);
        ColumnVector[] taken = new ColumnVector[output.size()];
        for (int i = 0; i < taken.length; i++) {
          taken[i] = all[i];
        }
        return new ColumnarBatch(taken, piece.getRowCount());
      }
    }
  }
}
