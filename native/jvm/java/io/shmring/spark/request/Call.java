package io.shmring.spark.request;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.shmring.exchange.Client.Timeouts;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.request.FunctionKind.Trait;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.api.python.ChainedPythonFunctions;
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

/** Describes the function that a node's tasks call: a sidecar's, or functions of Python workers. */
public sealed interface Call extends Serializable {
  /** Returns the name shown in logs and in the name of the task's memory. */
  String name();

  /** Returns the maximum number of requests that a task may have under way. */
  int inFlight();

  /** Whether the functions are called for a partition without rows. */
  default boolean isCalledWithNothing() {
    return false; // an empty partition sends no request
  }

  /**
   * Returns the bytes of vectors at which a batch ends, whatever its number of rows, in a task with
   * these settings.
   */
  default long wholeBytes(SQLConf ofTask) {
    return Long.MAX_VALUE;
  }

  /**
   * Returns the interval, in rows of the child, at which every batch ends, even a batch that began
   * in the middle of an interval; 0 for none.
   */
  default int cutRows() {
    return 0;
  }

  /**
   * Returns the call for a task with these settings; the same object if the call does not depend on
   * them.
   */
  default Call in(SQLConf ofTask) {
    return this;
  }

  /** Whether Spark's own batches have one struct column, whose fields are the child's columns. */
  default boolean isStruct() {
    return false;
  }

  /**
   * Whether one request may have several groups. True only if the function cannot notice that they
   * came together.
   */
  default boolean joinsGroups() {
    return false;
  }

  /**
   * Returns the maximum number of rows of a batch. This limit is for batches without columns, which
   * no limit of bytes ends, because they have no bytes.
   */
  default int mostRows() {
    return 1 << 24;
  }

  /**
   * Whether a task fails if Spark has no memory for its batches. If false, the task goes on with
   * one request at a time.
   */
  boolean needsMemory();

  // CHANGE: edit this for a new option of a client
  /**
   * Describes a call of a sidecar, which shmring.spark.through() has written into the function's
   * name.
   *
   * @param timeout seconds to wait for an answer
   * @param connectTimeout seconds to wait for the sidecar
   * @param replySlots slots of the reply ring; 0 if the user set none
   */
  public record SidecarCall(
      String sidecar, int inFlight, double timeout, double connectTimeout, long replySlots)
      implements Call {
    /**
     * A batch has at most 1/PART of the bytes of its request ring, because other tasks need room in
     * the ring, too.
     */
    static final int PART = 8;

    private static final String BEGINS = "shmring.through";
    private static final ObjectMapper JSON =
        JsonMapper.builder().enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS).build();

    /** Returns the call in a function's name; empty if shmring.spark.through() has not made it. */
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

    /**
     * Returns a parser placed at the first call in a text. Text that follows the call stays unread.
     */
    public static JsonParser in(String text) throws IOException {
      int at = text.indexOf(BEGINS);
      return JSON.createParser(at < 0 ? "" : text.substring(at + BEGINS.length()));
    }

    /** Reads a call: the options that functions.py has written, by their names. */
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
      return value.isNumber() && value.doubleValue() >= 0; // false for NaN
    }

    @Override
    public String name() {
      return sidecar;
    }

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
   * Describes functions of Spark's own Python workers, and all that a task tells a worker about
   * them.
   *
   * @param schema schema of the batches as Spark's own node sends them
   * @param conf the session's settings that the worker is told
   * @param cutRows interval in rows at which a UDTF's batches end, set when its node was made; 0 if
   *     only the task's settings bound batches
   * @param artifacts the uuid of the query's artifacts in Spark Connect, if it has some
   * @param session the uuid of the session if its workers write logs; empty if they write none
   * @param udtf the UDTF, if the call is one; it is the only function then
   */
  public record PythonCall(
      Seq<Tuple2<ChainedPythonFunctions, Object>> functions,
      FunctionKind kind,
      EvalPythonExec.ArgumentMetadata[][] arguments,
      StructType schema,
      Map<String, String> conf,
      int cutRows,
      Option<String> artifacts,
      Option<String> session,
      Option<PythonUDTF> udtf)
      implements Call {
    /** Python module of the daemon whose workers can use rings. */
    public static final String DAEMON = "shmring.spark.daemon";

    /** Setting: module to run instead of DAEMON; the module must call DAEMON's main itself. */
    public static final String DAEMON_SETTING = "spark.shmring.daemon";

    // Maximum number of requests under way at a time. The number is small because requests under
    // way are wasted if a function stops early.
    private static final int IN_FLIGHT = 4;

    /**
     * Setting: "off" lets workers convert data as Spark does. src/shmring/spark/conversions reads
     * it.
     */
    public static final String CONVERSIONS = "spark.shmring.conversions";

    /**
     * Setting: "off" lets each worker import pandas itself. The environment variable
     * SHMRING_WARM_WORKERS passes the setting on to src/shmring/spark/warm.py.
     */
    public static final String WARM_WORKERS = "spark.shmring.warmWorkers";

    /** Returns the session's settings that a worker is told. */
    @SuppressWarnings("unchecked") // to Java, updated() of a Scala map returns a raw Map
    public static Map<String, String> told(SQLConf now) {
      Map<String, String> told = ArrowPythonRunner.getPythonRunnerConfMap(now);
      // CHANGE: edit this for a new setting of Spark's sessions
      for (String option : List.of(CONVERSIONS, WARM_WORKERS)) {
        if (now.contains(option)) {
          told = told.updated(option, now.getConfString(option));
        }
      }
      return told;
    }

    /** Returns whether the daemon of the workers imports pandas for them. */
    boolean hasWarmWorkers() {
      return !conf.get(WARM_WORKERS).contains("off");
    }

    /** Key of the worker's settings that says which functions get the bounds of their windows. */
    private static final String WINDOWS = "window_bound_types";

    /**
     * Returns the same functions over windows: the bounds, two columns for each frame, are sent
     * before the functions' arguments.
     *
     * @param kind kind of the functions over windows
     * @param places index of each function's frame; -1 for a whole partition, which has no bounds
     */
    @SuppressWarnings("unchecked") // to Java, updated() of a Scala map returns a raw Map
    public PythonCall ofWindows(FunctionKind kind, int[] places, int frames) {
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
      return with(kind, taken, conf.updated(WINDOWS, bounds));
    }

    private PythonCall with(
        FunctionKind kind, EvalPythonExec.ArgumentMetadata[][] arguments, Map<String, String> conf) {
      return new PythonCall(
          functions, kind, arguments, schema, conf, cutRows, artifacts, session, udtf);
    }

    /** Returns the metadata of an argument without a name. */
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
      return kind.has(Trait.CALLED_WITH_NOTHING);
    }

    @Override
    public long wholeBytes(SQLConf ofTask) {
      long set = ofTask.arrowMaxBytesPerBatch();
      return set <= 0 || set == Integer.MAX_VALUE ? Long.MAX_VALUE : set; // no limit, as in Spark
    }

    @Override
    @SuppressWarnings("unchecked") // to Java, updated() of a Scala map returns a raw Map
    public Call in(SQLConf ofTask) {
      if (!kind.has(Trait.READS_TASKS_SETTINGS)) {
        return this;
      }
      Map<String, String> told = told(ofTask);
      return with(
          kind,
          arguments,
          kind.has(Trait.HAS_BOUNDS) ? told.updated(WINDOWS, conf.apply(WINDOWS)) : told);
    }

    /**
     * Returns the largest number that a writer can take: as in Spark, only Spark's settings limit
     * the rows of a batch.
     */
    @Override
    public int mostRows() {
      return RootWriter.MOST_ROWS;
    }

    /** Returns false: Spark's own nodes do not count the memory of batches either. */
    @Override
    public boolean needsMemory() {
      return false;
    }

    @Override
    public boolean isStruct() {
      return kind.takesStruct();
    }

    @Override
    public boolean joinsGroups() {
      return kind.has(Trait.JOINS_GROUPS);
    }
  }
}
