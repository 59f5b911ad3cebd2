package io.shmring.spark.driver;

import io.shmring.spark.columns.BatchSizes;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.functions.RowsToArrowExec;
import io.shmring.spark.functions.SettingsCheck;
import io.shmring.spark.request.CollectTask.Source;
import io.shmring.spark.request.CollectTask;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkException;
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
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.Utils;
import scala.Function0;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.BoxedUnit;

// CHANGE: edit this for a new version of Spark
/**
 * Collects a query's result for the driver's Python, like {@code Dataset.collectAsArrowToPython}.
 * But the tasks write all except their first batches into files that the driver's Python has
 * opened. shmring/spark/driver.py reads the result.
 *
 * <p>Python reads from the socket: length and bytes of the schema, then the tasks' results in the
 * order of their arrival, and {@link #DONE} if the job succeeds.
 */
public final class DriverCollect {
  private static final String MOST_BYTES = SettingsCheck.DRIVER_MOST_BYTES;
  private static final String SPARKS_MOST_BYTES = "spark.driver.maxResultSize";
  private static final String COMPRESSION = "spark.sql.execution.arrow.compression.codec";
  // Name of the action, the same as for Spark's own call, so that listeners see no difference.
  private static final String ACTION = "collectAsArrowToPython";
  private static final String QUERY_ID = "spark.sql.dataset.queryExecutionId";

  private static final String NO_LIMIT =
      "the free memory; set " + MOST_BYTES + " to a size, and files in spark.local.dir take so much";

  // If the settings do not limit a result, its limit is the free memory, but at least this many
  // bytes.
  private static final long LEAST_BYTES = 64 << 20;

  private static final byte DONE = 1;

  // Maximum bytes of batches that a task puts into its result. The task writes further batches into
  // a file, because larger results come faster through a file.
  private static final long MOST_INLINE = 256 * 1024;

  // Maximum bytes of batches in the results of all tasks together. The limit is low because the
  // results go through the driver's heap.
  private static final long MOST_INLINE_OF_ALL = 32 << 20;

  /**
   * Tag on a stage of generated code that Spark has planned. The tag's value holds the stage that
   * {@link #generated} made from Spark's stage.
   */
  private static final TreeNodeTag<Generated> GENERATED = new TreeNodeTag<>("io.shmring.generated");

  /**
   * A stage whose generated code writes batches.
   *
   * @param below top node of Spark's stage from which this stage was made
   */
  private record Generated(SparkPlan below, WholeStageCodegenExec stage) {}

  private final QueryExecution query;
  private final StructType schema;
  private final SQLConf settings;
  private final SparkContext context;
  private String limit; // name of the setting that limits the result, for errors
  private long mostBytes;
  private List<String> files;

  // The fields below are written by one thread, which reports the results of tasks to this object.
  private int results; // number of tasks that have reported
  private long bytes;
  private Optional<String> refusal = Optional.empty();

  private DriverCollect(Dataset<?> frame) {
    this.query = frame.queryExecution();
    this.schema = frame.schema();
    this.settings = query.sparkSession().sessionState().conf();
    this.context = query.sparkSession().sparkContext();
  }

  /** Returns an object that collects the frame; null if Spark has to collect the frame. */
  public static DriverCollect of(Dataset<?> frame) {
    DriverCollect collect = new DriverCollect(frame);
    return collect.isTaken() ? collect : null;
  }

  private boolean isTaken() {
    return settings.getConfString(SettingsCheck.DRIVER, "on").equals("on")
        && settings.getConfString(COMPRESSION, "none").equals("none")
        && !schema.isEmpty()
        && Stream.of(schema.fields()).allMatch(DriverCollect::isSupported);
  }

  /**
   * Whether a column can be collected. Each column is checked alone, because {@link
   * SparkTypes#unsupported} refuses two columns of one name, and a result may have them.
   */
  private static boolean isSupported(StructField column) {
    return SparkTypes.unsupported(new StructType().add(column)).isEmpty();
  }

  /**
   * Begins to collect the frame: through files in memory if the largest result that is allowed fits
   * into `room`, or if the settings do not limit the result; else through the file on disk.
   *
   * @param room bytes of memory for the result
   * @param links the files that the driver's Python has opened: first a file on disk, then files in
   *     memory. Each file is described as in {@link CollectTask}'s `files`; a NUL character
   *     separates two files. Empty if there are no files
   * @return port, secret and server of the socket from which Python reads the result, in the array
   *     that Spark returns for its own collection
   */
  public Object[] serve(long room, String links) {
    boolean isSet = settings.contains(MOST_BYTES);
    String sparks = context.conf().get(SPARKS_MOST_BYTES, "1g");
    long most = bytes(settings.getConfString(MOST_BYTES, sparks));
    limit = most <= 0 ? NO_LIMIT : isSet ? MOST_BYTES : SPARKS_MOST_BYTES;
    mostBytes = most > 0 ? most : Math.max(room, LEAST_BYTES);
    List<String> all = links.isEmpty() ? List.of() : List.of(links.split("\0"));
    int memory = Math.min(1, all.size());
    files = List.copyOf(most > room ? all.subList(0, memory) : all.subList(memory, all.size()));
    return PythonRDD$.MODULE$.serveToStream(
        "serve-Arrow",
        out -> {
          act(out);
          return BoxedUnit.UNIT;
        });
  }

  private static long bytes(String size) {
    try {
      return JavaUtils.byteStringAsBytes(size);
    } catch (IllegalArgumentException error) {
      throw new IllegalArgumentException(
          String.format("%s must be a size such as 4g, or 0 for no limit, not %s", MOST_BYTES, size),
          error);
    }
  }

  /** Runs the collection as an action of the query, like Spark's Dataset.withAction. */
  private void act(OutputStream out) {
    Function0<BoxedUnit> action =
        () -> {
          byte[] message = SparkTypes.of(settings).schema(schema).serializeAsMessage();
          write(out, ByteBuffer.allocate(Integer.BYTES).putInt(message.length).array(), message);
          SparkPlan plan = query.executedPlan();
          plan.resetMetrics();
          return plan instanceof AdaptiveSparkPlanExec adaptive
              ? adaptive.withFinalPlanUpdate(last -> run(last, out))
              : run(plan, out);
        };
    SQLExecution.withNewExecutionId(
        query,
        Option.apply(ACTION),
        () -> {
          // The property needs no reset after the action, because this thread ends with the action.
          context.setLocalProperty(QUERY_ID, Long.toString(query.id()));
          return QueryExecution$.MODULE$.withInternalError(
              String.format("The \"%s\" action failed.", ACTION), action);
        });
  }

  /**
   * Runs the plan. If its last nodes would turn batches of columns into rows, leaves them out,
   * because the tasks send the columns. If its last node is a stage of generated code, runs a stage
   * that writes batches instead. The metrics of Spark's nodes are counted all the same.
   */
  private BoxedUnit run(SparkPlan plan, OutputStream out) {
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
      return run(columns.executeColumnar(), source, time, out);
    }
    return stage.isPresent() && RowsToArrowExec.takes(top)
        ? run(generated(stage.get()).execute(), Source.ofStage(), time, out)
        : run(plan.execute(), Source.ofStage(), List.of(), out);
  }

  private static List<SQLMetric> metric(Optional<? extends SparkPlan> node, String name) {
    return node.map(each -> each.longMetric(name)).stream().toList();
  }

  /**
   * Returns a stage that does the same as Spark's stage, but whose generated code writes batches
   * instead of rows. A tag on Spark's stage keeps the new stage, so that the next collection of the
   * same frame does not generate its code again.
   */
  private static SparkPlan generated(WholeStageCodegenExec stage) {
    SparkPlan below = stage.child();
    synchronized (stage) { // several threads may collect one frame
      return stage
          .getTagValue(GENERATED)
          // Compare the stage's child with the child from which the tag's stage was made: Spark
          // copies the tag with the stage, and a copied stage may have another child.
          .filter(made -> made.below() == below)
          .getOrElse(
              () -> {
                RowsToArrowExec end = new RowsToArrowExec(copy(below));
                Generated made =
                    new Generated(below, new WholeStageCodegenExec(end, stage.codegenStageId()));
                stage.setTagValue(GENERATED, made);
                return made;
              })
          .stage();
    }
  }

  /**
   * Returns a copy of the nodes in a stage of generated code; tasks of the copy count in the
   * metrics of Spark's nodes. A copy is needed because a node keeps state while code is generated,
   * such as its parent. Another thread may generate the code of Spark's stage meanwhile, to collect
   * the same frame as rows.
   */
  private static SparkPlan copy(SparkPlan node) {
    List<SparkPlan> children = CollectionConverters.asJava(node.children());
    List<SparkPlan> below =
        node instanceof InputAdapter
            ? children
            : children.stream().map(DriverCollect::copy).toList();
    SparkPlan copy =
        children.isEmpty()
            ? node.clone()
            : node.withNewChildrenInternal(CollectionConverters.asScala(below).toIndexedSeq());
    copy.copyTagsFrom(node);
    CollectionConverters.asJava(node.metrics())
        .forEach((name, metric) -> copy.longMetric(name).metadata_$eq(metric.metadata()));
    return copy;
  }

  private <T> BoxedUnit run(
      RDD<T> rdd, Source<T> source, List<SQLMetric> time, OutputStream out) {
    long inline = Math.min(MOST_INLINE, MOST_INLINE_OF_ALL / Math.max(1, rdd.getNumPartitions()));
    SparkTypes types = SparkTypes.of(settings);
    int batchRows = settings.arrowMaxRecordsPerBatch();
    try {
      context.runJob(
          rdd,
          new CollectTask<>(source, schema, types, batchRows, inline, files, mostBytes, time),
          (partition, result) -> {
            take(result, out);
            return BoxedUnit.UNIT;
          },
          ClassTag$.MODULE$.apply(byte[][].class));
    } finally {
      if (refusal.isPresent()) {
        Platform.throwException(new SparkException(refusal.get()));
      }
    }
    write(out, new byte[] {DONE});
    return BoxedUnit.UNIT;
  }

  private static void write(OutputStream out, byte[]... arrays) {
    try {
      for (byte[] each : arrays) {
        out.write(each);
      }
    } catch (IOException error) {
      Platform.throwException(error);
    }
  }

  /**
   * Takes the result of a task. If a task has several attempts, Spark gives the result of the first
   * one that succeeds.
   */
  private void take(byte[][] result, OutputStream out) {
    ByteBuffer head = ByteBuffer.wrap(result[0]);
    bytes += head.getLong();
    results++;
    if (refusal.isEmpty() && bytes > mostBytes) {
      refusal =
          Optional.of(
              String.format(
                  "Job aborted due to stage failure: Total size of serialized results of %d tasks"
                      + " (%s) is bigger than %s (%s)",
                  results,
                  Utils.bytesToString(bytes),
                  limit,
                  Utils.bytesToString(mostBytes)));
      context.cancelStage(head.getInt(), refusal.get());
    }
    if (refusal.isEmpty()) {
      write(out, result);
    }
  }
}
