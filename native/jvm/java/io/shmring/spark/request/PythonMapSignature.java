package io.shmring.spark.request;

import io.shmring.spark.columns.RootColumns;
import io.shmring.spark.columns.SparkTypes;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * All columns go to a function of Spark's own, and the answer's columns come instead of them. Spark does
 * not compare their types with the declared ones: it fails, or does not, when it reads a value.
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
  public Sent sent() {
    return Sent.all(columns());
  }

  @Override
  public AnswerHandler begin(int partition) {
    return new Rows(this);
  }

  /** Which answers are of which batch only the function knows. */
  private static final class Rows extends MapSignature.Rows {
    private boolean isDeclared; // what comes now is of the declared types

    Rows(PythonMapSignature signature) {
      super(
          "mapInArrow",
          ColumnMapping.BY_PLACE,
          signature.output,
          AnswerHandler.OfRows.unsafe(signature.inputs.get(0)));
    }

    @Override
    public Optional<String> objection(Schema got) {
      int columns = got.getFields().size();
      isDeclared =
          columns >= output.size()
              && ResultSchema.difference(got.getFields(), output.fields(), ColumnMapping.BY_PLACE).isEmpty();
      return Optional.empty();
    }

    @Override
    public Optional<String> answered(VectorSchemaRoot piece) {
      return isDeclared
          ? NullCheck.objection(piece.getFieldVectors(), output.fields())
          : Optional.empty();
    }

    /** Those that are not as declared are read as Spark reads them, with its errors. */
    @Override
    public ColumnarBatch columns(VectorSchemaRoot piece) {
      if (isDeclared) {
        return RootColumns.of(piece, IntStream.range(0, output.size()).toArray());
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
