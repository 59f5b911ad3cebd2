package io.shmring.spark.functions;

import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.FunctionKind;
import io.shmring.spark.request.Signature;
import io.shmring.spark.request.UdfAnswers;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.internal.config.ConfigEntry;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.expressions.PythonFuncExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.PythonUDTF;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.internal.SQLConf$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Decides whether functions of Spark's Python workers go over rings, and makes their calls. */
final class PythonCalls {
  /** Setting: "on" or "off"; "on" sends batches of Python functions over rings. */
  static final String SWITCH = "spark.shmring.functions";

  private static final String SPARKS_WORKER = "pyspark.worker";
  private static final Logger LOG = LoggerFactory.getLogger(PythonCalls.class);
  // Uuids of the sessions for which this class has logged that functions go over rings.
  private static final Set<String> TOLD = ConcurrentHashMap.newKeySet();

  // CHANGE: edit this for a new version of Spark
  // Setting of Spark, since 4.2: if true, and the child gives batches of columns, a UDF with Arrow
  // gets each of these batches unchanged.
  private static final String COLUMNAR_INPUT =
      "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled";

  /**
   * Holds a session's settings that calls depend on. The settings may change between the making of
   * a plan and its run. Spark's nodes of groups, cogroups and UDTFs read the settings when the node
   * is made; Spark's other nodes read them when tasks are made, or in the tasks (Call.in).
   *
   * @param types mapping from Spark types to Arrow types
   * @param conf settings that the worker is told
   * @param rows maximum number of rows of a batch
   * @param session the uuid of the session if its workers write logs; empty if they write none
   */
  record Settings(
      Signature.Types types, Map<String, String> conf, int rows, Option<String> session)
      implements Serializable {
    static Settings of(SQLConf now) {
      return new Settings(
          Signature.Types.of(now),
          PythonCall.told(now),
          now.arrowMaxRecordsPerBatch(),
          now.pythonWorkerLoggingEnabled()
              ? SparkSession.getActiveSession().map(SparkSession::sessionUUID)
              : Option.empty());
    }
  }

  private PythonCalls() {}

  static boolean areWanted() {
    return !switched().equals("off");
  }

  private static String switched() {
    return SQLConf.get().getConfString(SWITCH, "off");
  }

  /** Logs once why functions go Spark's own way, and not over rings. */
  static void tell(String why) {
    LeftToSpark.tell(
        String.format(
            "Python functions take Spark's own way, although %s is %s: %s",
            SWITCH, switched(), why));
  }

  /** Logs, once for each session, that functions go over rings, and the versions in use. */
  static void tellOfRings(String node) {
    String session =
        SparkSession.getActiveSession().map(SparkSession::sessionUUID).getOrElse(() -> "");
    if (TOLD.add(session)) {
      SQLConf conf = SQLConf.get();
      LOG.info(
          "Python functions of session {} go over rings, first {}: shmring {}, Spark {}, Java {};"
              + " conversions {}, warm workers {}, results of the driver {}",
          session,
          node,
          LeftToSpark.version(),
          org.apache.spark.package$.MODULE$.SPARK_VERSION(),
          Runtime.version(),
          // CHANGE: edit this for a new setting of Spark's sessions
          conf.getConfString(PythonCall.CONVERSIONS, "on"),
          conf.getConfString(PythonCall.WARM_WORKERS, "on"),
          conf.getConfString(SettingsCheck.DRIVER, "off"));
    }
  }

  /** Returns why no function of this session can go over rings; empty if functions can. */
  static Optional<String> objection(SQLConf settings) {
    Optional<String> wrong = SettingsCheck.ofFunctions(settings);
    if (wrong.isPresent()) {
      return wrong;
    }
    SparkConf conf = SparkEnv.get().conf();
    String daemon = conf.get("spark.python.daemon.module", PythonCall.DAEMON);
    if (!daemon.equals(PythonCall.DAEMON) && !conf.contains(PythonCall.DAEMON_SETTING)) {
      return Optional.of(
          "spark.python.daemon.module is set: set %s, too, to a module that calls %s.main()"
              .formatted(PythonCall.DAEMON_SETTING, PythonCall.DAEMON));
    }
    if (!conf.getBoolean("spark.python.use.daemon", true)) {
      return Optional.of("spark.python.use.daemon is false");
    }
    String worker = conf.get("spark.python.worker.module", SPARKS_WORKER);
    // Daemons ignore a worker module whose name does not begin with pyspark.
    if (worker.startsWith("pyspark") && !worker.equals(SPARKS_WORKER)) {
      return Optional.of("spark.python.worker.module is set");
    }
    return Optional.empty();
  }

  /**
   * Whether UDFs over a child that gives batches of columns get each of these batches unchanged. If
   * false, the child's rows are divided into new batches.
   */
  static boolean keepBatches() {
    ConfigEntry<?> entry = SQLConf$.MODULE$.getConfigEntry(COLUMNAR_INPUT);
    return entry != null && SQLConf.get().getConf(entry).equals(true);
  }

  /** Returns the uuid of the Spark Connect artifacts of the query that is being planned. */
  static Option<String> artifacts() {
    return JobArtifactSet.getCurrentJobArtifactState().map(JobArtifactState::uuid);
  }

  /** Returns why these functions, which get columns, cannot go over rings; empty if they can. */
  static Optional<String> objection(List<? extends PythonFuncExpression> udfs) {
    List<Expression> typed = arguments(udfs);
    if (typed.isEmpty()) {
      return Optional.of("it takes no columns");
    }
    udfs.forEach(udf -> typed.add((Expression) udf));
    return SparkTypes.unsupported(UdfAnswers.types(FunctionNode.seq(typed)));
  }

  // CHANGE: edit this for a new kind of Python function
  /**
   * Returns the call of a function that gets all columns.
   *
   * @param places places of keys and values among the sent columns, as Spark's
   *     PandasGroupUtils.resolveArgOffsets() encodes them; {0} for a function without keys
   */
  static PythonCall ofFrames(
      PythonUDF function, int[] places, Option<String> artifacts, Settings settings) {
    EvalPythonExec.ArgumentMetadata[][] taken = {
      Arrays.stream(places)
          .mapToObj(PythonCall::taken)
          .toArray(EvalPythonExec.ArgumentMetadata[]::new)
    };
    return call(List.of(function), taken, new StructType(), artifacts, settings);
  }

  static PythonCall ofUdfs(
      List<? extends PythonFuncExpression> udfs, Option<String> artifacts, Settings settings) {
    List<Expression> arguments = arguments(udfs);
    EvalPythonExec.ArgumentMetadata[][] taken =
        udfs.stream()
            .map(
                udf ->
                    IntStream.range(0, given(udf).size())
                        .mapToObj(i -> taken(given(udf).get(i), arguments, isTable(udf, i)))
                        .toArray(EvalPythonExec.ArgumentMetadata[]::new))
            .toArray(EvalPythonExec.ArgumentMetadata[][]::new);
    StructType schema = UdfAnswers.types(FunctionNode.seq(arguments));
    return call(udfs, taken, schema, artifacts, settings);
  }

  private static boolean isTable(PythonFuncExpression udf, int argument) {
    return udf instanceof PythonUDTF table
        && table.tableArguments().exists(each -> (boolean) each.apply(argument));
  }

  private static EvalPythonExec.ArgumentMetadata taken(
      Expression argument, List<Expression> arguments, boolean isTable) {
    Option<String> name =
        argument instanceof NamedArgumentExpression named
            ? Option.apply(named.key())
            : Option.empty();
    return new EvalPythonExec.ArgumentMetadata(
        place(value(argument), arguments), name, isTable);
  }

  /** Returns the distinct arguments of all functions. */
  static List<Expression> arguments(List<? extends PythonFuncExpression> udfs) {
    List<Expression> arguments = new ArrayList<>();
    for (PythonFuncExpression udf : udfs) {
      for (Expression argument : given(udf)) {
        if (place(value(argument), arguments) < 0) {
          arguments.add(value(argument));
        }
      }
    }
    return arguments;
  }

  /** Returns the place of a value among the arguments; -1 if it is none of them. */
  static int place(Expression value, List<Expression> arguments) {
    for (int i = 0; i < arguments.size(); i++) {
      if (arguments.get(i).semanticEquals(value)) {
        return i;
      }
    }
    return -1;
  }

  private static Expression value(Expression argument) {
    return argument instanceof NamedArgumentExpression named ? named.value() : argument;
  }

  /** Returns the arguments of the innermost function of a chain. */
  private static List<Expression> given(PythonFuncExpression udf) {
    return CollectionConverters.asJava(((Expression) chain(udf).get(0)).children());
  }

  /**
   * Returns the chain of functions that ends with the given one. Each function's only argument is
   * the function before it.
   */
  private static List<PythonFuncExpression> chain(PythonFuncExpression udf) {
    List<PythonFuncExpression> chain = new ArrayList<>();
    Seq<Expression> children = ((Expression) udf).children();
    if (children.size() == 1 && children.head() instanceof PythonFuncExpression inner) {
      chain.addAll(chain(inner));
    }
    chain.add(udf);
    return chain;
  }

  private static PythonCall call(
      List<? extends PythonFuncExpression> functions,
      EvalPythonExec.ArgumentMetadata[][] arguments,
      StructType schema,
      Option<String> artifacts,
      Settings settings) {
    List<Tuple2<ChainedPythonFunctions, Object>> chains = new ArrayList<>();
    for (PythonFuncExpression function : functions) {
      chains.add(
          new Tuple2<>(
              new ChainedPythonFunctions(
                  FunctionNode.seq(
                      chain(function).stream().map(PythonFuncExpression::func).toList())),
              function.resultId().id()));
    }
    Option<PythonUDTF> udtf =
        functions.get(0) instanceof PythonUDTF table ? Option.apply(table) : Option.empty();
    return new PythonCall(
        FunctionNode.seq(chains),
        FunctionKind.of(functions.get(0).evalType()).orElseThrow(),
        arguments,
        schema,
        settings.conf(),
        udtf.isDefined() ? Math.max(0, settings.rows()) : 0,
        artifacts,
        settings.session(),
        udtf);
  }
}
