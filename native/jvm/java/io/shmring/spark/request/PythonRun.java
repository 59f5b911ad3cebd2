package io.shmring.spark.request;

import io.shmring.sidecar.WorkerClient;
import io.shmring.sidecar.WorkerRings;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.BasePythonRunner;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonWorker;
import org.apache.spark.api.python.SpecialLengths;
import org.apache.spark.sql.execution.python.BasePythonUDFRunner;
import org.apache.spark.sql.execution.python.EvalPythonExec;
import org.apache.spark.sql.execution.python.PythonUDFRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.util.TaskCompletionListener;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's own way to run functions in a Python worker, but that batches go over rings: Spark finds the
 * worker, tells it the functions and the task, hears its errors, times and accumulators, and takes it
 * back or ends it. Instead of the batches the worker is told of the rings; spark/exchange.py reads it.
 */
final class PythonRun implements WorkerClient.Control {
  // An Arrow stream begins with ff ff ff ff.
  private static final int MAGIC = 0x53484d52;
  private static final int VERSION = 1;
  private static final int STRUCT = 1;
  private static final int ITERATOR = 2;
  private static final int GIVES_STRUCT = 4;
  private static final AtomicLong STREAMS = new AtomicLong();

  // 4.1 wants a profiler, which is a part of runnerConf() since.
  private static final Method WRITE_UDFS =
      Arrays.stream(PythonUDFRunner.class.getMethods())
          .filter(each -> each.getName().equals("writeUDFs"))
          .filter(each -> each.getParameterTypes()[2] == EvalPythonExec.ArgumentMetadata[][].class)
          .findFirst()
          .orElseThrow();
  private static final boolean IS_CONF_OF_COMMAND = WRITE_UDFS.getParameterCount() > 3;

  private final Call.PythonCall call;
  private final TaskContext context;
  private final long bytes;
  private final long stream = STREAMS.incrementAndGet();
  private WorkerRings rings;
  private PythonWorker worker;
  private Runner.Reader reader;

  /**
   * @param bytes of a request
   */
  PythonRun(Call.PythonCall call, TaskContext context, long bytes) {
    this.call = call;
    this.context = context;
    this.bytes = bytes;
  }

  /** The number of the batches' stream. */
  long stream() {
    return stream;
  }

  /** Lets a worker begin, and waits until it has attached to its rings. */
  WorkerRings begin() {
    Runner runner = new Runner();
    context.addTaskCompletionListener((TaskCompletionListener) ended -> runner.endIfKilled());
    runner.compute(
        CollectionConverters.asScala(Collections.emptyIterator()),
        context.partitionId(),
        context);
    reader.readUntil(SpecialLengths.START_ARROW_STREAM());
    return rings;
  }

  @Override
  public boolean isHeard() {
    try {
      worker.selector().selectedKeys().clear(); // else the key says what it said before
      return reader.isAvailable()
          || worker.selector().selectNow() > 0 && worker.selectionKey().isReadable();
    } catch (IOException | RuntimeException error) { // it was closed: reading tells why
      return true;
    }
  }

  @Override
  public void end() {
    reader.readUntil(SpecialLengths.END_OF_DATA_SECTION());
  }

  /** Spark's runner that is the same in 4.1 to 4.3, with what its runner of Arrow functions says. */
  private final class Runner extends BasePythonUDFRunner {
    Runner() {
      super(
          call.functions(),
          call.evalType(),
          new int[call.arguments().length][0],
          Map$.MODULE$.empty(),
          call.artifacts(),
          Option.empty()); // of a session whose workers write logs: PythonCalls.objection()
    }

    /**
     * Ends the worker of a task that was killed if its function computes for longer than Spark lets it:
     * Spark's own monitor does so only while the task waits for it.
     */
    void endIfKilled() {
      if (worker == null || reader != null && reader.isAtEnd || !context.isInterrupted()) {
        return;
      }
      SparkEnv env = SparkEnv.get();
      long patience = env.conf().getTimeAsMs("spark.python.task.killTimeout", "2s");
      String daemon = env.conf().get("spark.python.daemon.module", "pyspark.daemon");
      String module = env.conf().get("spark.python.worker.module", "pyspark.worker");
      Map<String, String> variables = Map$.MODULE$.from(CollectionConverters.asScala(envVars()));
      Executor later = CompletableFuture.delayedExecutor(patience, TimeUnit.MILLISECONDS);
      later.execute(
          () -> env.destroyPythonWorker(pythonExec(), module, daemon, variables, worker));
    }

    /** No thread of its own writes: there are no batches to write. Since 4.3. */
    public boolean pipelinedEnabled() {
      return false;
    }

    /** Since 4.2; before, it is a part of the command. */
    public Map<String, String> runnerConf() {
      return call.conf();
    }

    /** As Spark's own runner of functions with named arguments has it, since 4.2. */
    @SuppressWarnings("unchecked") // Scala's classes name its types in two ways
    public Map<String, String> evalConf() {
      Map<String, String> none = Map$.MODULE$.empty();
      return call.evalType() == PythonEvalType.SQL_ARROW_BATCHED_UDF()
          ? none.updated("input_type", call.schema().json())
          : none;
    }

    @Override
    public void writeUDF(DataOutputStream out) {
      try {
        if (!IS_CONF_OF_COMMAND) {
          WRITE_UDFS.invoke(null, out, call.functions(), call.arguments());
        } else {
          Option<String> profiler = SQLConf.get().pythonUDFProfiler();
          WRITE_UDFS.invoke(null, out, call.functions(), call.arguments(), profiler);
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
      rings = Clients.PythonRings.of(worker, bytes);
      return new Announcement(env, worker, input, partition, context);
    }

    @Override
    @SuppressWarnings({"rawtypes", "unchecked"}) // Scala's classes name these types in two ways
    public Iterator<byte[]> newReaderIterator(
        DataInputStream stream,
        BasePythonRunner.Writer writer,
        long startTime,
        SparkEnv env,
        PythonWorker worker,
        Option handle,
        AtomicBoolean releasedOrClosed,
        TaskContext context) {
      reader = new Reader(stream, writer, startTime, env, worker, handle, releasedOrClosed, context);
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
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
        CollectionConverters.asJava(call.conf())
            .forEach(
                (key, value) -> {
                  writeUTF(key, out);
                  writeUTF(value, out);
                });
      }

      @Override
      public boolean writeNextInputToStream(DataOutputStream out) {
        byte[] paths = String.join("\n", rings.paths()).getBytes(StandardCharsets.UTF_8);
        try {
          out.writeInt(MAGIC);
          out.writeInt(VERSION);
          out.writeLong(stream);
          out.writeInt(
              (call.isStruct() ? STRUCT : 0)
                  | (call.isIterator() ? ITERATOR : 0)
                  | (call.givesStruct() ? GIVES_STRUCT : 0));
          out.writeInt(paths.length);
          out.write(paths);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
        return false; // there is no more
      }
    }

    final class Reader extends BasePythonRunner<byte[], byte[]>.ReaderIterator {
      private final DataInputStream stream;
      private boolean isAtEnd; // the worker was given back, or closed

      @SuppressWarnings({"rawtypes", "unchecked"}) // of what it is depends on the version
      Reader(
          DataInputStream stream,
          BasePythonRunner<byte[], byte[]>.Writer writer,
          long startTime,
          SparkEnv env,
          PythonWorker worker,
          Option handle,
          AtomicBoolean releasedOrClosed,
          TaskContext context) {
        Runner.this.super(
            stream, writer, startTime, env, worker, handle, releasedOrClosed, context);
        this.stream = stream;
      }

      boolean isAvailable() throws IOException {
        return stream.available() > 0;
      }

      /** Reads what the worker says up to this; raises its error, or Spark's about its end. */
      void readUntil(int last) {
        try {
          int said;
          do {
            said = stream.readInt();
            hear(said);
          } while (said != last);
        } catch (Throwable error) { // the checked ones, too, that Scala does not declare
          if (handleException().isDefinedAt(error)) {
            handleException().apply(error);
          }
          PythonRun.<RuntimeException>rethrow(error);
        }
      }

      private void hear(int said) {
        if (said == SpecialLengths.TIMING_DATA()) {
          handleTimingData();
        } else if (said == SpecialLengths.PYTHON_EXCEPTION_THROWN()) {
          throw handlePythonException();
        } else if (said == SpecialLengths.END_OF_DATA_SECTION()) {
          handleEndOfDataSection();
          isAtEnd = true;
        } else if (said != SpecialLengths.START_ARROW_STREAM()) {
          throw new IllegalStateException("a Python worker says " + said + " on its socket");
        }
      }

      @Override
      public byte[] read() {
        throw new IllegalStateException("batches come over rings");
      }
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void rethrow(Throwable error) throws E {
    throw (E) error;
  }
}
