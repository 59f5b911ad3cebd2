package io.shmring.spark.request;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.shmring.sidecar.Client.Timeouts;
import io.shmring.spark.columns.RootWriter;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.PythonUDTF;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;

/** Whom a node's tasks ask. */
public sealed interface Call extends Serializable {
  /** For the log. */
  String name();

  /** The most requests of a task that are under way. */
  int inFlight();

  /** Whether the functions see that a partition has no rows. */
  default boolean isCalledWithNothing() {
    return false; // an empty partition troubles nobody
  }

  /** Bytes of vectors with which a batch is whole, though it may have more rows, in such a task. */
  default long wholeBytes(SQLConf ofTask) {
    return Long.MAX_VALUE;
  }

  /** Each so many rows of the child end a batch, though it began later; 0: none. */
  default int cutRows() {
    return 0;
  }

  /** The same call in a task with these settings. */
  default Call in(SQLConf ofTask) {
    return this;
  }

  /** Whether Spark's own batches have all columns as the fields of one. */
  default boolean isStruct() {
    return false;
  }

  /** Whether groups may be joined to one request: the function cannot tell. */
  default boolean joinsGroups() {
    return false;
  }

  /** The most rows of a batch: without columns they have no bytes that would bound them. */
  default int mostRows() {
    return 1 << 24;
  }

  /** Whether its batches count with what Spark's operators take, so that it fails where memory is short. */
  boolean needsMemory();

  /**
   * What a function that shmring.spark.through() made says of itself: in its name.
   *
   * @param timeout in seconds, as all times that users give
   * @param replySlots 0 if they gave none
   */
  public record SidecarCall(
      String sidecar, int inFlight, double timeout, double connectTimeout, long replySlots)
      implements Call {
    /** A batch takes at most one such part of a ring, so that others' find room beside it. */
    static final int PART = 8;

    private static final String BEGINS = "shmring.through";
    private static final ObjectMapper JSON =
        JsonMapper.builder().enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS).build();

    /** Empty if it is somebody else's function. */
    public static Optional<SidecarCall> of(PythonUDF function) {
      String name = function.name();
      if (!name.startsWith(BEGINS)) {
        return Optional.empty();
      }
      try (JsonParser words = in(name)) {
        return Optional.of(read(words));
      } catch (IOException error) {
        return Optional.empty();
      }
    }

    /** What stands in a text from the first call on: that, and what follows it. */
    public static JsonParser in(String text) throws IOException {
      int at = text.indexOf(BEGINS);
      return JSON.createParser(at < 0 ? "" : text.substring(at + BEGINS.length()));
    }

    /** The call that stands there: functions.py's options, by their names. */
    public static SidecarCall read(JsonParser words) throws IOException {
      JsonNode call = JSON.readTree(words);
      if (call == null) {
        throw new IOException("no call");
      }
      return new SidecarCall(
          option(call, "name", JsonNode::isTextual).textValue(),
          option(call, "in_flight", value -> value.isInt() && value.intValue() > 0).intValue(),
          option(call, "timeout", SidecarCall::isTime).doubleValue(),
          option(call, "connect_timeout", SidecarCall::isTime).doubleValue(),
          option(call, "reply_slots", value -> value.isNull() || value.longValue() > 0).longValue());
    }

    private static JsonNode option(JsonNode call, String name, Predicate<JsonNode> isValid) {
      JsonNode value = call.path(name);
      if (!isValid.test(value)) {
        throw new IllegalArgumentException(
            String.format("shmring.spark.through(): %s cannot be %s", name, value));
      }
      return value;
    }

    private static boolean isTime(JsonNode value) {
      return value.isNumber() && value.doubleValue() >= 0; // never of NaN
    }

    @Override
    public String name() {
      return sidecar;
    }

    /** Of a plan's nodes. */
    public String nodeName() {
      return "Sidecar " + sidecar;
    }

    @Override
    public boolean needsMemory() {
      return true;
    }

    Timeouts waits() {
      return new Timeouts(timeout, connectTimeout);
    }

    @Override
    public String toString() {
      String slots = replySlots == 0 ? "" : ", reply_slots=" + replySlots;
      return String.format(
          "through(%s, in_flight=%d, timeout=%s, connect_timeout=%s%s)",
          sidecar, inFlight, timeout, connectTimeout, slots);
    }
  }

  /**
   * Functions of Spark's own Python workers, and all that a task tells such a worker of them.
   *
   * @param evalType one of Spark's PythonEvalType
   * @param schema of the batches as Spark's own node sends them
   * @param conf what of the session's settings the worker is told
   * @param cutRows of a UDTF's batches when its node was made; 0: as the task says
   * @param artifacts of Spark Connect, by their uuid
   * @param udtf if it is one, which is alone then
   */
  public record PythonCall(
      Seq<Tuple2<ChainedPythonFunctions, Object>> functions,
      int evalType,
      EvalPythonExec.ArgumentMetadata[][] arguments,
      StructType schema,
      Map<String, String> conf,
      int cutRows,
      Option<String> artifacts,
      Option<PythonUDTF> udtf)
      implements Call {
    /** The daemon of the workers that know of rings. */
    public static final String DAEMON = "shmring.spark.daemon";

    // CHANGE: a new kind of Python function
    private static final Set<Integer> MAPS =
        Set.of(PythonEvalType.SQL_MAP_ARROW_ITER_UDF(), PythonEvalType.SQL_MAP_PANDAS_ITER_UDF());

    private static final Set<Integer> ARROW_GROUPS =
        Set.of(
            PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF(),
            PythonEvalType.SQL_GROUPED_MAP_ARROW_ITER_UDF());

    // Their batches have a column for each of the frame's.
    private static final Set<Integer> PANDAS_GROUPS =
        Set.of(
            PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF(),
            PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF());

    private static final Set<Integer> COGROUPS =
        Set.of(
            PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF(),
            PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF());

    private static final Set<Integer> ITERATORS =
        Set.of(
            PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF(), PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF());

    private static final Set<Integer> SCALARS =
        Set.of(
            PythonEvalType.SQL_SCALAR_PANDAS_UDF(),
            PythonEvalType.SQL_SCALAR_ARROW_UDF(),
            PythonEvalType.SQL_ARROW_BATCHED_UDF());

    // 4.1 has not the iterators' two, and no name for them.
    private static final Set<Integer> AGGREGATES =
        Set.of(
            PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF(),
            217, // SQL_GROUPED_AGG_PANDAS_ITER_UDF
            PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF(),
            254); // SQL_GROUPED_AGG_ARROW_ITER_UDF

    // Spark puts the batches of a group together before a function gets it.
    private static final Set<Integer> JOINED =
        Set.of(
            PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF(),
            PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF(),
            PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF(),
            PythonEvalType.SQL_WINDOW_AGG_PANDAS_UDF());

    private static final Set<Integer> UDTFS =
        Set.of(PythonEvalType.SQL_ARROW_TABLE_UDF(), PythonEvalType.SQL_ARROW_UDTF());

    /** Whether functions of this kind, which get columns, are known. */
    public static boolean isOfColumns(int evalType) {
      return Stream.of(ITERATORS, SCALARS, AGGREGATES, UDTFS)
          .anyMatch(kind -> kind.contains(evalType));
    }

    // The worker looks no further ahead: a function that stops early has computed little in vain.
    private static final int IN_FLIGHT = 4;

    /** "off": workers convert data as Spark does; src/shmring/spark/conversions reads it. */
    private static final String CONVERSIONS = "spark.shmring.conversions";

    /** Returns the session's settings that a worker is told. */
    @SuppressWarnings("unchecked") // Scala's classes name its types in two ways
    public static Map<String, String> told(SQLConf now) {
      Map<String, String> told = ArrowPythonRunner.getPythonRunnerConfMap(now);
      return now.contains(CONVERSIONS)
          ? told.updated(CONVERSIONS, now.getConfString(CONVERSIONS))
          : told;
    }

    /** What the worker is told of the bounds of windows. */
    private static final String WINDOWS = "window_bound_types";

    /**
     * The same functions over windows, whose bounds go before what they take: two columns a frame.
     *
     * @param places of each function's frame; -1: all of its partition, without bounds
     */
    @SuppressWarnings("unchecked") // Scala's classes name its types in two ways
    public PythonCall ofWindows(int evalType, int[] places, int frames) {
      EvalPythonExec.ArgumentMetadata[][] taken = new EvalPythonExec.ArgumentMetadata[places.length][];
      for (int i = 0; i < places.length; i++) {
        Stream<EvalPythonExec.ArgumentMetadata> bounds =
            places[i] < 0 ? Stream.of() : Stream.of(taken(2 * places[i]), taken(2 * places[i] + 1));
        taken[i] =
            Stream.concat(
                    bounds,
                    Arrays.stream(arguments[i])
                        .map(
                            each ->
                                new EvalPythonExec.ArgumentMetadata(
                                    2 * frames + each.offset(), each.name(), false)))
                .toArray(EvalPythonExec.ArgumentMetadata[]::new);
      }
      String bounds =
          Arrays.stream(places)
              .mapToObj(place -> place < 0 ? "unbounded" : "bounded")
              .collect(Collectors.joining(","));
      return with(evalType, taken, conf.updated(WINDOWS, bounds));
    }

    private PythonCall with(
        int evalType, EvalPythonExec.ArgumentMetadata[][] arguments, Map<String, String> conf) {
      return new PythonCall(
          functions, evalType, arguments, schema, conf, cutRows, artifacts, udtf);
    }

    /** What a function takes that has no name for it. */
    public static EvalPythonExec.ArgumentMetadata taken(int place) {
      return new EvalPythonExec.ArgumentMetadata(place, Option.empty(), false);
    }

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
      return MAPS.contains(evalType) || isIterator() || udtf.isDefined();
    }

    @Override
    public long wholeBytes(SQLConf ofTask) {
      long set = ofTask.arrowMaxBytesPerBatch();
      return set <= 0 || set == Integer.MAX_VALUE ? Long.MAX_VALUE : set; // as Spark reads it
    }

    /** Tasks of Spark's nodes of UDFs and of windows read what they tell the worker, and others not. */
    @Override
    @SuppressWarnings("unchecked") // Scala's classes name its types in two ways
    public Call in(SQLConf ofTask) {
      boolean isOfWindows = conf.contains(WINDOWS);
      if (!isOfWindows && !SCALARS.contains(evalType) && !isIterator()) {
        return this;
      }
      Map<String, String> told = told(ofTask);
      return with(
          evalType,
          arguments,
          isOfWindows ? told.updated(WINDOWS, conf.apply(WINDOWS)) : told);
    }

    /** Spark's own have no such bound. */
    @Override
    public int mostRows() {
      return RootWriter.MOST_ROWS;
    }

    /** Those of Spark's own functions do not count. */
    @Override
    public boolean needsMemory() {
      return false;
    }

    @Override
    public boolean isStruct() {
      return MAPS.contains(evalType) || ARROW_GROUPS.contains(evalType);
    }

    /** Whether functions get batches in groups. */
    boolean isGrouped() {
      return ARROW_GROUPS.contains(evalType)
          || PANDAS_GROUPS.contains(evalType)
          || AGGREGATES.contains(evalType)
          || conf.contains(WINDOWS)
          || isOfCogroups();
    }

    /** Whether each batch has one answer, which comes in order. */
    boolean answersEachBatch() {
      return SCALARS.contains(evalType);
    }

    /** Whether functions get all columns of batches, groups or cogroups. */
    boolean isOfFrames() {
      return isStruct() || PANDAS_GROUPS.contains(evalType) || isOfCogroups();
    }

    /** Whether answers have all columns as the fields of one. */
    boolean givesStruct() {
      return isOfFrames() || udtf.isDefined();
    }

    /** Whether several answers may come as one: Spark makes them of values, not by request. */
    boolean comesTogether() {
      return evalType != PythonEvalType.SQL_ARROW_UDTF()
          && !isOfFrames()
          && !SCALARS.contains(evalType)
          && !isIterator();
    }

    @Override
    public boolean joinsGroups() {
      return JOINED.contains(evalType);
    }

    boolean isOfCogroups() {
      return COGROUPS.contains(evalType);
    }

    /** Whether a function takes all batches, and gives as many rows as these have. */
    public boolean isIterator() {
      return ITERATORS.contains(evalType);
    }
  }
}
