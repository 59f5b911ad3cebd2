package io.shmring.spark.request;

import java.io.Serializable;

/** Whom a node's tasks ask. */
public sealed interface Call extends Serializable permits SidecarCall, PythonCall {
  /** For the log. */
  String name();

  /** The most requests of a task that are under way. */
  int inFlight();

  /** Whether the functions see that a partition has no rows. */
  boolean isCalledWithNothing();

  /** The most bytes of the first batch's rows, unless its first row has more. */
  long firstBytes();

  /** Bytes of vectors with which a batch is whole, though it may have more rows. */
  long wholeBytes();

  /** Whether Spark's own batches have all columns as the fields of one. */
  boolean isStruct();
}
