package io.shmring.spark.request;

import io.shmring.exchange.WorkerClient;
import io.shmring.exchange.WorkerRings;
import io.shmring.spark.request.FunctionKind.Trait;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.PythonWorkerException;
import org.apache.spark.api.python.SpecialLengths;
import org.apache.spark.sql.execution.python.BasePythonUDFRunner;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.execution.python.PythonUDFRunner;
import org.apache.spark.sql.execution.python.PythonUDTFRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.util.TaskCompletionListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Map;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Runs functions in one of Spark's Python workers, with batches over rings. Spark finds the worker,
 * sends it the functions and the task, receives its errors, times and accumulators, and takes it
 * back or ends it. Instead of batches the worker gets the paths of the rings, which
 * spark/exchange.py reads.
 */
final class PythonRun implements WorkerClient.Control {
  // First bytes before the rings' paths: "SHMR". An Arrow stream begins with ff ff ff ff instead.
  private static final int MAGIC = 0x53484d52;
  // CHANGE: edit this for a new field of a worker's message
  private static final int VERSION = 1; // the same number is in exchange.py
  private static final int STRUCT = 1;
  private static final int GIVES_STRUCT = 2;
  private static final int COGROUPS = 4;
  private static final int TOGETHER = 8;
  private static final String LACKS_SHMRING =
      "the executors' Python (%s) lacks shmring, or has an old one: install the driver's version"
          + " there, or set spark.shmring.functions to off";
  // Paths of this host's Pythons that lack shmring.
  private static final Set<String> LACKING = ConcurrentHashMap.newKeySet();
  // The first start of a worker, by the worker's Python and environment variables. A latch is
  // counted down when the start has succeeded or failed.
  private static final ConcurrentHashMap<List<Object>, CountDownLatch> STARTS =
      new ConcurrentHashMap<>();
  private static final CountDownLatch NO_START = new CountDownLatch(0);
  private static final Logger LOG = LoggerFactory.getLogger(PythonRun.class);
  private static final String SPARKS_DAEMON = "pyspark.daemon";
  // Text by which begin() recognizes the error of a worker that cannot attach to its rings. The
  // batches then go over the socket. exchange.py raises an error with the same text.
  private static final String CANNOT_ATTACH = "a worker cannot attach to its rings";
  private static final AtomicLong STREAMS = new AtomicLong();

  // CHANGE: edit this for a new version of Spark
  // Spark's two methods that write functions to a worker. The second one is for functions that take
  // all columns of the child, and writes no names of arguments. In Spark 4.1 both methods also take
  // a profiler.
  private static final Method WRITE_UDFS = writer(EvalPythonExec.ArgumentMetadata[][].class);
  private static final Method WRITE_UDFS_OF_FRAMES = writer(int[][].class);
  private static final boolean IS_CONF_OF_COMMAND = WRITE_UDFS.getParameterCount() > 3;

  private final Call.PythonCall call;
  private final TaskContext context;
  private final long bytes;
  private final boolean wantsRings;
  private final FunctionTask.Metrics metrics;
  private boolean usesRings; // whether batches go over rings, if rings can be made
  private final long stream = STREAMS.incrementAndGet();
  private Optional<WorkerRings> rings = Optional.empty();
  private Predicate<DataOutputStream> batches; // writes the next batch to the socket
  private boolean isRefused;
  private PythonWorker worker;
  private Runner runner;
  private long idleWarnings;
  private DataInputStream socket;
  // Spark's reader of the worker's socket; it yields no batches, only errors and the end of the
  // task.
  private Iterator<byte[]> reader;
  private boolean isAtEnd; // whether the worker was given back or ended

  /**
   * @param bytes size of a request in bytes, from which the size of the rings follows
   * @param wantsRings whether to use rings, if rings can be made; false sends all batches over the
   *     socket
   * @param metrics the task's metrics; Spark's runner adds to some of them
   */
  PythonRun(
      Call.PythonCall call,
      TaskContext context,
      long bytes,
      boolean wantsRings,
      FunctionTask.Metrics metrics) {
    this.call = call;
    this.context = context;
    this.bytes = bytes;
    this.wantsRings = wantsRings;
    this.metrics = metrics;
  }

  /** Returns the number of the task's stream, which is in the head of each of its messages. */
  long stream() {
    return stream;
  }

  /**
   * Start of a worker by another thread.
   *
   * @param over counted down when the start has succeeded or failed
   * @param isOwn whether this task began the start. The start then uses the task's context, so the
   *     task must not end until the start is over.
   */
  record Start(CountDownLatch over, boolean isOwn) {
    static final Start NONE = new Start(NO_START, false);
  }

  /**
   * Lets another thread start a worker, unless this process has started one in the function's
   * environment before. The start of the workers' daemon takes a second, and meanwhile the task
   * makes its first batch. The started worker waits in Spark's pool for a task. While the daemon
   * starts, Spark blocks every task that asks for a worker, even a task that is killed meanwhile.
   *
   * @return the first start of a worker in the function's environment; do not ask for a worker of
   *     this environment before the start is over
   */
  Start prepare() {
    Runner starter = new Starter();
    CountDownLatch starting = new CountDownLatch(1);
    CountDownLatch first =
        LACKING.contains(starter.python())
            ? NO_START
            : STARTS.putIfAbsent(List.of(starter.python(), starter.variables()), starting);
    if (first != null) {
      return new Start(first, false);
    }
    usesRings = true;
    CompletableFuture.runAsync(
            () ->
                starter.compute(
                    CollectionConverters.asScala(Collections.emptyIterator()),
                    context.partitionId(),
                    context))
        // An error is ignored here: the task gets an error itself when it asks for a worker.
        .whenComplete((nothing, error) -> starting.countDown());
    return new Start(starting, true);
  }

  /**
   * Gives the functions to a Python worker, and waits until the worker has attached to its rings.
   * Returns the rings; empty if batches must go over the socket.
   */
  Optional<WorkerRings> begin() {
    runner = new Runner();
    usesRings = wantsRings && !LACKING.contains(runner.python());
    context.addTaskCompletionListener((TaskCompletionListener) ended -> runner.endIfKilled());
    try {
      runner.compute(
          CollectionConverters.asScala(Collections.emptyIterator()),
          context.partitionId(),
          context);
    } catch (Exception error) { // Scala's methods do not declare checked exceptions
      if (!String.valueOf(error.getMessage()).contains("No module named 'shmring")) {
        throw error;
      }
      LACKING.add(runner.python());
      Clients.withoutRings(LACKS_SHMRING.formatted(runner.python()));
      isRefused = true;
      return Optional.empty();
    }
    if (rings.isPresent() && !hasStarted()) {
      try {
        end();
      } catch (Exception error) { // Scala's methods do not declare checked exceptions
        String said = String.valueOf(error.getMessage());
        int why = said.indexOf(CANNOT_ATTACH);
        if (why < 0) {
          throw error;
        }
        Clients.withoutRings(said.substring(why).lines().findFirst().orElse(""));
        isRefused = true;
        return Optional.empty();
      }
      throw new IllegalStateException("a Python worker has ended without a word on its rings");
    }
    return rings;
  }

  /**
   * Whether begin() gave up because of the rings: the executors' Python lacks shmring, or the
   * worker could not attach to its rings, and has ended. The caller then begins a run without
   * rings.
   */
  boolean isRefused() {
    return isRefused;
  }

  /**
   * Lets Spark write the batches to the socket while the task waits for an answer.
   *
   * @param batches function that writes the next batch, or the end of the batches; returns false if
   *     it wrote the end
   */
  void writeBatchesWith(Predicate<DataOutputStream> batches) {
    this.batches = batches;
  }

  /** Returns the stream of the worker's answers on its socket. */
  DataInputStream socket() {
    return socket;
  }

  /**
   * Waits for the worker's first answer; returns false if the worker has ended, or raised, instead.
   */
  boolean hasStarted() {
    try {
      socket.mark(Integer.BYTES);
      if (socket.readInt() == SpecialLengths.START_ARROW_STREAM()) {
        return true;
      }
      socket.reset();
    } catch (IOException error) { // the caller calls end(), which throws why the socket failed
    }
    return false;
  }

  @Override
  public boolean isHeard() {
    try {
      // Clear the key: isReadable() would otherwise return the state at an earlier call.
      worker.selector().selectedKeys().clear();
      return socket.available() > 0
          || worker.selector().selectNow() > 0 && worker.selectionKey().isReadable();
    } catch (IOException | RuntimeException error) {
      // The socket is closed. The caller then calls end(), which throws the worker's error.
      return true;
    }
  }

  @Override
  public void isSilent(long nanos) {
    runner.<RuntimeException>endIfIdle(nanos);
  }

  @Override
  public void end() {
    reader.hasNext();
    isAtEnd = true;
  }

  // CHANGE: edit this for a new version of Spark
  /**
   * Extends the base class of Spark's runners, which is the same in 4.1 to 4.3, and sends the same
   * data as Spark's Arrow runner.
   */
  private class Runner extends BasePythonUDFRunner {
    Runner() {
      super(
          call.functions(),
          call.kind().evalType(),
          new int[call.arguments().length][0],
          metrics.byName(),
          call.artifacts(),
          call.session());
      if (!call.hasWarmWorkers()) {
        // Tells the daemon not to import pandas for its workers. Spark starts one daemon for each
        // set of variables, so warm workers keep a daemon of their own.
        envVars().put("SHMRING_WARM_WORKERS", "off");
      }
    }

    String python() {
      return pythonExec();
    }

    /**
     * Ends the worker of a killed task if the function computes for longer than Spark allows.
     * Spark's own monitor ends workers only of tasks that have not completed, and a killed task
     * over rings may complete while its function still computes.
     */
    void endIfKilled() {
      if (worker == null || isAtEnd || !context.isInterrupted()) {
        return;
      }
      long patience = SparkEnv.get().conf().getTimeAsMs("spark.python.task.killTimeout", "2s");
      CompletableFuture.delayedExecutor(patience, TimeUnit.MILLISECONDS).execute(this::destroy);
    }

    Map<String, String> variables() {
      return Map$.MODULE$.from(CollectionConverters.asScala(envVars()));
    }

    String module() {
      return SparkEnv.get().conf().get("spark.python.worker.module", "pyspark.worker");
    }

    private void destroy() {
      SparkEnv.get()
          .destroyPythonWorker(
              pythonExec(),
              module(),
              org$apache$spark$api$python$BasePythonRunner$$daemonModule(),
              variables(),
              worker);
    }

    /**
     * Logs a warning if the worker's socket is silent for the session's idle timeout. If
     * killOnIdleTimeout is set, also ends the worker and throws Spark's error.
     */
    @SuppressWarnings("unchecked") // the generic type lets a checked exception go undeclared
    <E extends Exception> void endIfIdle(long nanos) throws E {
      long most = idleTimeoutSeconds();
      if (most <= 0 || nanos / TimeUnit.SECONDS.toNanos(most) <= idleWarnings) {
        return;
      }
      idleWarnings = nanos / TimeUnit.SECONDS.toNanos(most);
      LOG.warn("Idle timeout reached for Python worker (timeout: {} seconds)", most);
      if (killOnIdleTimeout()) {
        destroy();
        isAtEnd = true;
        throw (E)
            new PythonWorkerException(
                String.format(
                    "Python worker process terminated due to idle timeout (timeout: %d seconds)",
                    most));
      }
    }

    // CHANGE: edit this for a new version of Spark
    /**
     * Returns the module of the daemon that starts the worker: shmring's if rings are used, else
     * Spark's. A setting of the user may replace either. The method overrides a private value of
     * the base class, which Scala compiles to a public method of this name in Spark 4.1 to 4.3.
     */
    @Override
    public String org$apache$spark$api$python$BasePythonRunner$$daemonModule() {
      SparkConf conf = SparkEnv.get().conf();
      if (usesRings) {
        return conf.get(Call.PythonCall.DAEMON_SETTING, Call.PythonCall.DAEMON);
      }
      String module = conf.get("spark.python.daemon.module", SPARKS_DAEMON);
      return module.equals(Call.PythonCall.DAEMON) ? SPARKS_DAEMON : module;
    }

    /** Returns false: no thread has to write batches to the socket. Called since Spark 4.3. */
    public boolean pipelinedEnabled() {
      return false;
    }

    /**
     * Returns the worker's settings. Spark calls this method since 4.2; in 4.1 writeConf() writes
     * the settings.
     */
    public Map<String, String> runnerConf() {
      return call.conf();
    }

    /**
     * Returns the settings that some kinds of functions need: the places of table arguments, or the
     * types of the arguments. Spark calls this method since 4.2; in 4.1 writeConf() writes them.
     */
    @SuppressWarnings("unchecked") // to Java, updated() of a Scala map returns a raw Map
    public Map<String, String> evalConf() {
      Map<String, String> none = Map$.MODULE$.empty();
      if (call.kind().has(Trait.TOLD_TABLES)) {
        String places = tables().mapToObj(Integer::toString).collect(Collectors.joining(","));
        return none.updated("table_arg_offsets", places);
      }
      return call.kind().has(Trait.TOLD_TYPES)
          ? none.updated("input_type", call.schema().json())
          : none;
    }

    private IntStream tables() {
      return Arrays.stream(call.arguments()[0])
          .filter(EvalPythonExec.ArgumentMetadata::isTableArg)
          .mapToInt(EvalPythonExec.ArgumentMetadata::offset);
    }

    @Override
    public void writeUDF(DataOutputStream out) {
      if (call.udtf().isDefined()) {
        PythonUDTFRunner.writeUDTF(out, call.udtf().get(), call.arguments()[0]);
        return;
      }
      try {
        boolean hasNames = call.kind().takesColumns();
        Method write = hasNames ? WRITE_UDFS : WRITE_UDFS_OF_FRAMES;
        Object arguments = hasNames ? call.arguments() : places(call.arguments());
        if (IS_CONF_OF_COMMAND) {
          Option<String> profiler = SQLConf.get().pythonUDFProfiler();
          write.invoke(null, out, call.functions(), arguments, profiler);
        } else {
          write.invoke(null, out, call.functions(), arguments);
        }
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException("this Spark does not write functions as others do", error);
      }
    }

    @Override
    public Announcement newWriter(
        SparkEnv env,
        PythonWorker worker,
        Iterator<byte[]> input,
        int partition,
        TaskContext context) {
      PythonRun.this.worker = worker;
      rings = usesRings ? Clients.ringsOf(worker, bytes) : Optional.empty();
      return new Announcement(env, worker, input, partition, context);
    }

    @Override
    @SuppressWarnings({"rawtypes", "unchecked"}) // raw types override the method of a Scala class
    public Iterator<byte[]> newReaderIterator(
        DataInputStream stream,
        BasePythonRunner.Writer writer,
        long startTime,
        SparkEnv env,
        PythonWorker worker,
        Option handle,
        AtomicBoolean releasedOrClosed,
        TaskContext context) {
      socket = stream;
      WorkerMetrics.begins(handle, context);
      reader =
          super.newReaderIterator(
              stream, writer, startTime, env, worker, handle, releasedOrClosed, context);
      return reader;
    }

    final class Announcement extends BasePythonRunner<byte[], byte[]>.Writer {
      Announcement(
          SparkEnv env,
          PythonWorker worker,
          Iterator<byte[]> input,
          int partition,
          TaskContext context) {
        Runner.this.super(env, worker, input, partition, context);
      }

      @Override
      public void writeCommand(DataOutputStream out) {
        if (IS_CONF_OF_COMMAND) {
          writeConf(out);
        }
        writeUDF(out);
      }

      private void writeConf(DataOutputStream out) {
        try {
          out.writeInt(call.conf().size());
          CollectionConverters.asJava(call.conf())
              .forEach(
                  (key, value) -> {
                    writeUTF(key, out);
                    writeUTF(value, out);
                  });
          if (call.kind().has(Trait.TOLD_TABLES)) {
            int[] places = tables().toArray();
            out.writeInt(places.length);
            for (int place : places) {
              out.writeInt(place);
            }
            return;
          }
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
        CollectionConverters.asJava(evalConf().values()).forEach(value -> writeUTF(value, out));
      }

      @Override
      public boolean writeNextInputToStream(DataOutputStream out) {
        if (rings.isEmpty()) {
          return batches.test(out);
        }
        byte[] paths = String.join("\n", rings.get().paths()).getBytes(StandardCharsets.UTF_8);
        try {
          out.writeInt(MAGIC);
          out.writeInt(VERSION);
          out.writeLong(stream);
          out.writeInt(
              (call.isStruct() ? STRUCT : 0)
                  | (call.kind().givesStruct() ? GIVES_STRUCT : 0)
                  | (call.kind().isOfCogroups() ? COGROUPS : 0)
                  | (call.kind().has(Trait.COMES_TOGETHER) ? TOGETHER : 0));
          out.writeInt(paths.length);
          out.write(paths);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
        return false; // the paths are the only input on the socket
      }
    }
  }

  /** Starts a worker, if none is idle, and gives it to Spark's pool at once, without a task. */
  private final class Starter extends Runner {
    @Override
    public Announcement newWriter(
        SparkEnv env,
        PythonWorker worker,
        Iterator<byte[]> input,
        int partition,
        TaskContext context) {
      env.releasePythonWorker(
          pythonExec(),
          module(),
          org$apache$spark$api$python$BasePythonRunner$$daemonModule(),
          variables(),
          worker);
      throw new CancellationException("the worker waits for its task");
    }
  }

  private static Method writer(Class<?> arguments) {
    return Arrays.stream(PythonUDFRunner.class.getMethods())
        .filter(each -> each.getName().equals("writeUDFs"))
        .filter(each -> each.getParameterTypes()[2] == arguments)
        .findFirst()
        .orElseThrow();
  }

  private static int[][] places(EvalPythonExec.ArgumentMetadata[][] arguments) {
    return Arrays.stream(arguments)
        .map(each -> Arrays.stream(each).mapToInt(argument -> argument.offset()).toArray())
        .toArray(int[][]::new);
  }
}
