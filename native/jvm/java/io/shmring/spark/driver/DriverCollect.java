package io.shmring.spark.driver;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.job.DriverFiles;
import io.shmring.spark.request.CollectTask;
import io.shmring.spark.request.CollectTask.Source;
import io.shmring.spark.sidecar.RowsToArrowExec;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkException;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.PythonRDD$;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.trees.TreeNodeTag;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.QueryExecution$;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.arrow.ArrowBatchStreamWriter;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.Utils;
import scala.Function0;
import scala.Function2;
import scala.Option;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.BoxedUnit;

/**
 * Collects a query's result for the driver's Python, like {@code Dataset.collectAsArrowToPython},
 * but by tasks that write their batches into the driver's files. The end in Python is
 * shmring/spark/driver.py.
 *
 * <p>Python reads from the socket: the byte {@link #OURS}; Spark's own stream with the schema and
 * the batches that came in tasks' results, in the order of their arrival; the number of parts; and
 * the parts, in the order of the rows.
 */
public final class DriverCollect {
  private static final String SWITCH = "spark.shmring.driver";
  private static final String MOST_BYTES = "spark.shmring.driver.maxBytes";
  private static final String SPARKS_MOST_BYTES = "spark.driver.maxResultSize";
  private static final String COMPRESSION = "spark.sql.execution.arrow.compression.codec";
  // Name of the action, the same as for Spark's own call, so that listeners see no difference.
  private static final String ACTION = "collectAsArrowToPython";
  private static final String QUERY_ID = "spark.sql.dataset.queryExecutionId";

  private static final String NO_LIMIT =
      "the free memory; set " + MOST_BYTES + " to a size, and files in spark.local.dir take so much";

  // First byte of the answer; an Arrow stream from Spark begins with ff instead.
  private static final int OURS = 'S';

  // Most bytes of batches in one task's result: more bytes come faster by a file.
  private static final long MOST_INLINE = 256 * 1024;

  // Most bytes of batches in the results of all tasks together, because results go through the
  // driver's heap.
  private static final long MOST_INLINE_OF_ALL = 32 << 20;

  /** Tag of a stage for the stage that {@link #generated} has made of it. */
  private static final TreeNodeTag<WholeStageCodegenExec> GENERATED =
      new TreeNodeTag<>("io.shmring.generated");

  private final QueryExecution query;
  private final StructType schema;
  private final SQLConf settings;
  private final SparkContext context;
  private final String limit; // name of the setting that limits the result, for errors
  private final DriverFiles files;

  // The fields below are written by one thread, which reports the results of tasks to this object.
  private final Map<Integer, byte[]> parts = new TreeMap<>(); // each task's head, by partition
  private int batches; // number of batches in the stream
  private long bytes;
  private Optional<String> refusal = Optional.empty();

  private DriverCollect(Dataset<?> frame, String files) {
    this.query = frame.queryExecution();
    this.schema = frame.schema();
    this.settings = query.sparkSession().sessionState().conf();
    this.context = query.sparkSession().sparkContext();
    String sparks = context.conf().get(SPARKS_MOST_BYTES, "1g");
    long most = JavaUtils.byteStringAsBytes(settings.getConfString(MOST_BYTES, sparks));
    String name = settings.contains(MOST_BYTES) ? MOST_BYTES : SPARKS_MOST_BYTES;
    this.limit = most > 0 ? name : NO_LIMIT;
    this.files = DriverFiles.of(files, most);
  }

  /**
   * Begins to collect a frame, or lets Spark collect it.
   *
   * @param files words about the driver's files, for {@link DriverFiles#of}
   * @return three values of Spark: port, secret and server of the socket from which Python reads
   *     the result
   */
  public static Object[] serve(Dataset<?> frame, String files) {
    if (!isTaken(frame)) {
      return frame.collectAsArrowToPython();
    }
    DriverCollect collect = new DriverCollect(frame, files);
    return PythonRDD$.MODULE$.serveToStream(
        "serve-Arrow",
        out -> {
          collect.act(out);
          return BoxedUnit.UNIT;
        });
  }

  private static boolean isTaken(Dataset<?> frame) {
    SQLConf settings = frame.queryExecution().sparkSession().sessionState().conf();
    // Numbers as names, because a result may have two columns of one name.
    StructType numbered = new StructType();
    for (StructField field : frame.schema().fields()) {
      numbered = numbered.add(Integer.toString(numbered.size()), field.dataType());
    }
    return settings.getConfString(SWITCH, "on").equals("on")
        && settings.getConfString(COMPRESSION, "none").equals("none")
        && numbered.size() > 0
        && SparkTypes.unsupported(numbered).isEmpty();
  }

  /** Runs the collection as an action of the query, like Spark's Dataset.withAction. */
  private void act(OutputStream out) {
    Function0<BoxedUnit> action =
        () -> {
          query.executedPlan().resetMetrics();
          try {
            write(new DataOutputStream(out));
          } catch (IOException error) {
            Platform.throwException(error);
          }
          return BoxedUnit.UNIT;
        };
    SQLExecution.withNewExecutionId(
        query,
        Option.apply(ACTION),
        () -> {
          // Not restored: this thread ends with the action.
          context.setLocalProperty(QUERY_ID, Long.toString(query.id()));
          return QueryExecution$.MODULE$.withInternalError(
              String.format("The \"%s\" action failed.", ACTION), action);
        });
  }

  private void write(DataOutputStream out) throws IOException {
    out.write(OURS);
    ArrowBatchStreamWriter stream = streamTo(out);
    boolean done = false;
    try {
      SparkPlan plan = query.executedPlan();
      if (plan instanceof AdaptiveSparkPlanExec adaptive) {
        adaptive.withFinalPlanUpdate(last -> run(last, stream));
      } else {
        run(plan, stream);
      }
      done = true;
    } finally { // written after a failure too: Python reads to the end, then asks for the error
      stream.end();
      out.writeInt(done ? parts.size() : 0);
      for (byte[] part : done ? parts.values() : List.<byte[]>of()) {
        out.write(part);
      }
    }
  }

  /** Returns Spark's writer of a stream, after it has written the schema. */
  private ArrowBatchStreamWriter streamTo(OutputStream out) {
    return new ArrowBatchStreamWriter(
        schema,
        out,
        settings.sessionLocalTimeZone(),
        settings.pandasStructHandlingMode().equals("legacy"),
        settings.arrowUseLargeVarTypes());
  }

  /**
   * Runs the plan, without its last nodes if the tasks do the work of these nodes. The metrics of
   * the nodes left out still count.
   */
  private BoxedUnit run(SparkPlan plan, ArrowBatchStreamWriter stream) {
    Optional<WholeStageCodegenExec> stage =
        plan instanceof WholeStageCodegenExec last ? Optional.of(last) : Optional.empty();
    SparkPlan top = stage.map(WholeStageCodegenExec::child).orElse(plan);
    Optional<ColumnarToRowExec> rows =
        top instanceof ColumnarToRowExec last ? Optional.of(last) : Optional.empty();
    SparkPlan below = rows.map(ColumnarToRowExec::child).orElse(top);
    SparkPlan columns = below instanceof InputAdapter adapter ? adapter.child() : below;
    List<SQLMetric> time = metric(stage, "pipelineTime");
    if (columns.supportsColumnar() && BatchSizes.areKnown(columns.schema())) {
      Source<ColumnarBatch> source =
          Source.ofColumns(metric(rows, "numInputBatches"), metric(rows, "numOutputRows"));
      run(columns.executeColumnar(), source, time, stream);
    } else if (stage.isPresent() && RowsToArrowExec.takes(top)) {
      run(generated(stage.get()).execute(), Source.ofStage(), time, stream);
    } else {
      run(plan.execute(), Source.ofStage(), List.of(), stream);
    }
    return BoxedUnit.UNIT;
  }

  private static List<SQLMetric> metric(Optional<? extends SparkPlan> node, String name) {
    return node.map(each -> each.longMetric(name)).stream().toList();
  }

  /**
   * Returns the stage with generated code that writes batches instead of rows. The code is made
   * once for each stage, because Spark makes its own once.
   */
  private static SparkPlan generated(WholeStageCodegenExec stage) {
    synchronized (stage) { // several threads may collect one frame
      return stage
          .getTagValue(GENERATED)
          .filter(made -> made.child().children().head() == stage.child()) // copies have its tags
          .getOrElse(
              () -> {
                RowsToArrowExec end = new RowsToArrowExec(stage.child());
                WholeStageCodegenExec made = new WholeStageCodegenExec(end, stage.codegenStageId());
                stage.setTagValue(GENERATED, made);
                return made;
              });
    }
  }

  private <T> void run(
      RDD<T> rdd, Source<T> source, List<SQLMetric> time, ArrowBatchStreamWriter stream) {
    ByteArrayOutputStream head = new ByteArrayOutputStream();
    streamTo(head);
    long inline = Math.min(MOST_INLINE, MOST_INLINE_OF_ALL / Math.max(1, rdd.getNumPartitions()));
    byte[] message = head.toByteArray();
    int batchRows = settings.arrowMaxRecordsPerBatch();
    CollectTask<T> task = new CollectTask<>(source, schema, message, batchRows, files, inline);
    try {
      context.runJob(
          rdd,
          function(task, time),
          (partition, result) -> {
            take((Integer) partition, result, stream);
            return BoxedUnit.UNIT;
          },
          ClassTag$.MODULE$.apply(byte[][].class));
    } finally {
      if (refusal.isPresent()) {
        Platform.throwException(new SparkException(refusal.get()));
      }
    }
  }

  private static <T> Function2<TaskContext, Iterator<T>, byte[][]> function(
      CollectTask<T> task, List<SQLMetric> time) {
    return (Function2<TaskContext, Iterator<T>, byte[][]> & Serializable)
        (context, child) -> {
          long begin = System.nanoTime();
          try {
            return task.collect(context, child);
          } catch (IOException error) {
            Platform.throwException(error);
            throw new AssertionError(error); // unreachable: the line above throws
          } finally {
            time.forEach(each -> each.add((System.nanoTime() - begin) / 1_000_000));
          }
        };
  }

  /**
   * Takes the result of a task. If a task has several attempts, Spark gives the result of the first
   * one that succeeds.
   */
  private void take(int partition, byte[][] result, ArrowBatchStreamWriter stream) {
    ByteBuffer head = ByteBuffer.wrap(result[0]);
    bytes += head.getLong();
    int stage = head.getInt();
    head.position(head.limit() - CollectTask.DRIVERS_BYTES);
    head.putInt(batches).putInt(batches + result.length - 1);
    parts.put(partition, result[0]);
    if (refusal.isEmpty() && bytes > files.mostBytes()) {
      refusal =
          Optional.of(
              String.format(
                  "Job aborted due to stage failure: Total size of serialized results of %d tasks"
                      + " (%s) is bigger than %s (%s)",
                  parts.size(),
                  Utils.bytesToString(bytes),
                  limit,
                  Utils.bytesToString(files.mostBytes())));
      context.cancelStage(stage, refusal.get());
    }
    if (refusal.isEmpty()) {
      batches += result.length - 1;
      stream.writeBatches(
          CollectionConverters.asScala(Arrays.asList(result).subList(1, result.length).iterator()));
    }
  }
}
