package io.shmring.spark.request;

import org.apache.spark.api.python.ChainedPythonFunctions;
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
 * @param isStruct whether the worker sees all columns as the fields of one
 * @param isIterator whether a function takes all batches, and gives as many rows as these have
 * @param wholeBytes with which Spark's own batches are whole
 * @param artifacts of Spark Connect, by their uuid
 */
public record PythonCall(
    Seq<Tuple2<ChainedPythonFunctions, Object>> functions,
    int evalType,
    EvalPythonExec.ArgumentMetadata[][] arguments,
    StructType schema,
    Map<String, String> conf,
    boolean isStruct,
    boolean isIterator,
    long wholeBytes,
    Option<String> artifacts)
    implements Call {
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

  /** Functions of iterators do. */
  @Override
  public boolean isCalledWithNothing() {
    return isStruct || isIterator;
  }

  /** Spark's batches are as long as its options say. */
  @Override
  public long firstBytes() {
    return Batches.UNLIMITED;
  }
}
