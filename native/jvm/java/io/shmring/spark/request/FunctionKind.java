package io.shmring.spark.request;

import static io.shmring.spark.request.FunctionKind.Grouping.COGROUPS;
import static io.shmring.spark.request.FunctionKind.Grouping.GROUPS;
import static io.shmring.spark.request.FunctionKind.Grouping.NONE;
import static io.shmring.spark.request.FunctionKind.Taken.COLUMNS;
import static io.shmring.spark.request.FunctionKind.Taken.FRAME;
import static io.shmring.spark.request.FunctionKind.Taken.STRUCT;
import static io.shmring.spark.request.FunctionKind.Trait.ANSWERS_EACH_BATCH;
import static io.shmring.spark.request.FunctionKind.Trait.CALLED_WITH_NOTHING;
import static io.shmring.spark.request.FunctionKind.Trait.COMES_TOGETHER;
import static io.shmring.spark.request.FunctionKind.Trait.GIVES_STRUCT;
import static io.shmring.spark.request.FunctionKind.Trait.GOES_OVER_WINDOWS;
import static io.shmring.spark.request.FunctionKind.Trait.HAS_BOUNDS;
import static io.shmring.spark.request.FunctionKind.Trait.ITERATOR;
import static io.shmring.spark.request.FunctionKind.Trait.JOINS_GROUPS;
import static io.shmring.spark.request.FunctionKind.Trait.MAY_BE_SIDECARS;
import static io.shmring.spark.request.FunctionKind.Trait.READS_TASKS_SETTINGS;
import static io.shmring.spark.request.FunctionKind.Trait.TOLD_TABLES;
import static io.shmring.spark.request.FunctionKind.Trait.TOLD_TYPES;

import java.util.Arrays;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.api.python.PythonEvalType;

// CHANGE: edit this for a new kind of Python function
/**
 * The kinds of Python functions that can go over rings. Each kind is one of Spark's eval types;
 * Spark itself executes functions of all other eval types. FunctionPlan lists the classes of plans
 * that call functions.
 */
public enum FunctionKind {
  // mapInArrow, mapInPandas
  MAP_ARROW(
      PythonEvalType.SQL_MAP_ARROW_ITER_UDF(),
      STRUCT, NONE, CALLED_WITH_NOTHING, MAY_BE_SIDECARS),
  MAP_PANDAS(PythonEvalType.SQL_MAP_PANDAS_ITER_UDF(), STRUCT, NONE, CALLED_WITH_NOTHING),

  // applyInArrow, applyInPandas
  GROUP_ARROW(PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF(), STRUCT, GROUPS, MAY_BE_SIDECARS),
  GROUP_ARROW_ITER(PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF(), STRUCT, GROUPS),
  GROUP_PANDAS(PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF(), FRAME, GROUPS, JOINS_GROUPS),
  GROUP_PANDAS_ITER(PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF(), FRAME, GROUPS),
  COGROUP_ARROW(PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF(), FRAME, COGROUPS, MAY_BE_SIDECARS),
  COGROUP_PANDAS(PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF(), FRAME, COGROUPS, JOINS_GROUPS),

  // pandas_udf, arrow_udf, udf with Arrow
  UDF_PANDAS(
      PythonEvalType.SQL_SCALAR_PANDAS_UDF(),
      COLUMNS, NONE, ANSWERS_EACH_BATCH, READS_TASKS_SETTINGS),
  UDF_ARROW(
      PythonEvalType.SQL_SCALAR_ARROW_UDF(),
      COLUMNS, NONE, ANSWERS_EACH_BATCH, READS_TASKS_SETTINGS),
  UDF_OF_ROWS(
      PythonEvalType.SQL_ARROW_BATCHED_UDF(),
      COLUMNS, NONE, ANSWERS_EACH_BATCH, READS_TASKS_SETTINGS, TOLD_TYPES),
  UDF_PANDAS_ITER(
      PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF(),
      COLUMNS, NONE, ITERATOR, CALLED_WITH_NOTHING, READS_TASKS_SETTINGS),
  UDF_ARROW_ITER(
      PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF(),
      COLUMNS, NONE, ITERATOR, CALLED_WITH_NOTHING, READS_TASKS_SETTINGS, MAY_BE_SIDECARS),

  // CHANGE: edit this for a new version of Spark
  // aggregates of groups. Two eval types are given as numbers, because Spark 4.1 lacks these types
  // and has no constants for them.
  AGGREGATE_PANDAS(
      PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF(),
      COLUMNS, GROUPS, JOINS_GROUPS, COMES_TOGETHER, GOES_OVER_WINDOWS),
  AGGREGATE_PANDAS_ITER(
      217, // SQL_GROUPED_AGG_PANDAS_ITER_UDF
      COLUMNS, GROUPS, COMES_TOGETHER),
  AGGREGATE_ARROW(
      PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF(),
      COLUMNS, GROUPS, COMES_TOGETHER, GOES_OVER_WINDOWS),
  AGGREGATE_ARROW_ITER(
      254, // SQL_GROUPED_AGG_ARROW_ITER_UDF
      COLUMNS, GROUPS, COMES_TOGETHER),

  // aggregates of windows: the functions of AGGREGATE_PANDAS and AGGREGATE_ARROW, over windows
  WINDOW_PANDAS(
      PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF(),
      COLUMNS, GROUPS, HAS_BOUNDS, JOINS_GROUPS, COMES_TOGETHER, READS_TASKS_SETTINGS),
  WINDOW_ARROW(
      PythonEvalType.SQL_WINDOW_AGG_ARROW_UDF(),
      COLUMNS, GROUPS, HAS_BOUNDS, COMES_TOGETHER, READS_TASKS_SETTINGS),

  // udtf with Arrow, arrow_udtf
  UDTF_OF_ROWS(
      PythonEvalType.SQL_ARROW_TABLE_UDF(),
      COLUMNS, NONE, CALLED_WITH_NOTHING, GIVES_STRUCT, COMES_TOGETHER, TOLD_TYPES),
  UDTF_ARROW(
      PythonEvalType.SQL_ARROW_UDTF(),
      COLUMNS, NONE, CALLED_WITH_NOTHING, GIVES_STRUCT, TOLD_TABLES);

  /** The form in which a function gets its batches. */
  enum Taken {
    /** The columns of the function's arguments. */
    COLUMNS,
    /** All columns of the child. */
    FRAME,
    /** One struct column, whose fields are all columns of the child. */
    STRUCT
  }

  /** The way in which the rows are divided among calls. */
  enum Grouping {
    NONE,
    GROUPS,
    COGROUPS
  }

  /** A property that only some kinds have. */
  public enum Trait {
    /** The function is called even for a partition without rows. */
    CALLED_WITH_NOTHING,
    /** Each batch gets one answer, in the order of the batches. */
    ANSWERS_EACH_BATCH,
    /** The function takes an iterator of all batches, and gives as many rows as the batches have. */
    ITERATOR,
    /**
     * One request may have several groups. The function cannot notice this, because Spark joins all
     * batches of a group before it calls the function.
     */
    JOINS_GROUPS,
    /**
     * Answers have one struct column, whose fields are the result's columns. Only kinds that take
     * COLUMNS need this trait: all other kinds give a struct anyway.
     */
    GIVES_STRUCT,
    /**
     * Several answers may come as one message. The worker can hold answers of these kinds back,
     * because Spark makes their batches from the values that the function returns. If the
     * function itself makes a batch, its kind lacks this trait, and the worker sends the batch at
     * once: the function may change the batch later.
     */
    COMES_TOGETHER,
    /** The worker gets the settings that hold when its task runs, not when the node was made. */
    READS_TASKS_SETTINGS,
    /** The worker is told the types of the arguments. */
    TOLD_TYPES,
    /** The worker is told which arguments are tables. */
    TOLD_TABLES,
    /** Functions of this kind may also be called over windows, where they get a WINDOW_ kind. */
    GOES_OVER_WINDOWS,
    /** The bounds of each row's windows are sent before the arguments. */
    HAS_BOUNDS,
    /** A sidecar may execute functions of this kind. */
    MAY_BE_SIDECARS
  }

  private final int evalType;
  private final Taken taken;
  private final Grouping grouping;
  private final Set<Trait> traits;

  FunctionKind(int evalType, Taken taken, Grouping grouping, Trait... traits) {
    this.evalType = evalType;
    this.taken = taken;
    this.grouping = grouping;
    this.traits = Set.of(traits);
  }

  /** Returns the kind of one of Spark's eval types; empty if only Spark executes such functions. */
  public static Optional<FunctionKind> of(int evalType) {
    return Arrays.stream(values()).filter(each -> each.evalType == evalType).findFirst();
  }

  public int evalType() {
    return evalType;
  }

  public boolean has(Trait trait) {
    return traits.contains(trait);
  }

  /** Whether functions get their arguments, and not all columns of the child. */
  public boolean takesColumns() {
    return taken == COLUMNS;
  }

  /** Whether Spark's own batches have one struct column, whose fields are the child's columns. */
  boolean takesStruct() {
    return taken == STRUCT;
  }

  // CHANGE: edit this for a new kind of Python function
  /** Whether answers have one struct column, whose fields are the result's columns. */
  boolean givesStruct() {
    return taken != COLUMNS || has(GIVES_STRUCT);
  }

  boolean isGrouped() {
    return grouping != NONE;
  }

  boolean isOfCogroups() {
    return grouping == COGROUPS;
  }
}
