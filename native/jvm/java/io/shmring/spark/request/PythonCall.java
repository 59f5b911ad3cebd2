package io.shmring.spark.request;

import java.util.Set;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/**
 * Functions of Spark's own Python workers, and all that a task tells such a worker of them.
 *
 * @param evalType one of Spark's PythonEvalType
 * @param schema of the batches as Spark's own node sends them
 * @param wholeBytes with which Spark's own batches are whole
 * @param artifacts of Spark Connect, by their uuid
 */
public record PythonCall(
    Seq<Tuple2<ChainedPythonFunctions, Object>> functions,
    int evalType,
    EvalPythonExec.ArgumentMetadata[][] arguments,
    StructType schema,
    Map<String, String> conf,
    long wholeBytes,
    Option<String> artifacts)
    implements Call {
  private static final Set<Integer> MAPS =
      Set.of(PythonEvalType.SQL_MAP_ARROW_ITER_UDF(), PythonEvalType.SQL_MAP_PANDAS_ITER_UDF());

  private static final Set<Integer> ARROW_GROUPS =
      Set.of(
          PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF(),
          PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF());

  // Groups and cogroups whose batches have a column for each of the frame's.
  private static final Set<Integer> FRAMES =
      Set.of(
          PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF(),
          PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF(),
          PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF(),
          PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF());

  private static final Set<Integer> ITERATORS =
      Set.of(
          PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF(), PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF());

  // The worker looks no further ahead: a function that stops early has computed little in vain.
  private static final int IN_FLIGHT = 4;

  @Override
  public String name() {
    return "Python";
  }

  @Override
  public int inFlight() {
    return IN_FLIGHT;
  }

  @Override
  public boolean isCalledWithNothing() {
    return MAPS.contains(evalType) || isIterator();
  }

  @Override
  public boolean isStruct() {
    return MAPS.contains(evalType) || ARROW_GROUPS.contains(evalType);
  }

  /** Whether answers have all columns as the fields of one. */
  boolean givesStruct() {
    return isStruct() || FRAMES.contains(evalType);
  }

  /** Whether a function takes all batches, and gives as many rows as these have. */
  public boolean isIterator() {
    return ITERATORS.contains(evalType);
  }

  /** Spark's batches are as long as its options say. */
  @Override
  public long firstBytes() {
    return Batches.UNLIMITED;
  }
}
