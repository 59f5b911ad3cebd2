package io.shmring.spark.request;

import io.shmring.exchange.Client.Answer;
import io.shmring.exchange.Client.Work;
import io.shmring.exchange.Client;
import io.shmring.exchange.FunctionException;
import io.shmring.exchange.SidecarClient;
import io.shmring.exchange.WorkerClient;
import io.shmring.exchange.WorkerRings;
import io.shmring.spark.columns.RowColumns;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.Call.SidecarCall;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.rdd.InputFileBlockHolder$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads a task's answers, piece by piece. Requests are sent as they are needed, with as many under
 * way as the client allows. An answer is read in place, in the ring's memory, and given back before
 * the task waits for the next answer.
 *
 * <p>A thread other than the task's may read the answers, and the task may end while that thread
 * reads. Every change of this object is therefore made with its monitor held.
 */
public final class AnsweredBatches implements AutoCloseable {
  // Spark's record of the file that a task reads; each thread has its own record.
  private static final InputFileBlockHolder$ FILE = InputFileBlockHolder$.MODULE$;

  // While the task waits for a worker's start, it checks at this interval whether it is killed.
  private static final long LOOK_MS = 50;

  final Call call;
  final Signature signature;
  final SQLConf settings; // the settings that Spark's own functions would see
  final TaskContext context;
  final BufferAllocator allocator;
  final AnswerHandler handler;
  final TaskCounts counts;
  private final FunctionTask.Metrics metrics;
  private final Supplier<Input> input;
  private Optional<Client> client = Optional.empty();
  private Runnable leaving = () -> {}; // closes the client, or keeps it for the next task
  private Batches batches;
  // Start of the first Python worker for this function's environment. The task waits for the start
  // before the task asks for a worker. If the start uses this task's context, the task also waits
  // before it frees its memory. A killed task waits in neither case.
  private PythonRun.Start starting = PythonRun.Start.NONE;
  private Optional<Answer> answer = Optional.empty();
  private Optional<ColumnarBatch> columns = Optional.empty(); // columns of the current piece
  private Optional<RowColumns> ofRows = Optional.empty(); // set if the results are rows
  private long given; // rows given out that are not yet in `counts`
  // Thread that reads the current columns without holding the monitor.
  private Optional<Thread> reader = Optional.empty();
  // Record of the file that the child reads, as the child has set it in InputFileBlockHolder.
  private Optional<Object> fileBelow = Optional.empty();
  private boolean closed;
  private boolean released;

  <T> AnsweredBatches(
      FunctionTask<T, ?> task, List<Iterator<T>> children, TaskContext context) {
    this.signature = task.signature();
    this.metrics = task.metrics();
    this.context = context;
    this.settings = SQLConf.get();
    this.call = task.call().in(settings);
    this.handler = signature.answers().begin(context);
    this.counts = new TaskCounts(metrics);
    this.input = () -> task.input().of(children, handler);
    this.allocator = // made last, because it would leak if the constructor failed later
        ArrowUtils.rootAllocator().newChildAllocator("shmring " + call.name(), 0, Long.MAX_VALUE);
  }

  /** Returns the next piece, if there is one; the piece before is freed. */
  private Optional<ColumnarBatch> next() {
    do {
      if (closed) {
        release();
        return Optional.empty();
      }
      leaveAnswer();
      context.killTaskIfInterrupted(); // Spark's runner also checks before each batch
      Object above = FILE.getThreadLocalValue();
      fileBelow.ifPresent(FILE::setThreadLocalValue);
      try {
        if (sendRequests()) {
          takeAnswer();
        } else {
          close();
        }
      } catch (InterruptedException error) {
        throw interrupted();
      } finally {
        restoreFile(above);
      }
    } while (columns.isEmpty());
    return columns;
  }

  /** Keeps as many requests under way as allowed. Returns false if no further answer can come. */
  private boolean sendRequests() throws InterruptedException {
    if (client.isEmpty() && !begin()) {
      return false;
    }
    Client answering = client.orElseThrow();
    boolean more = true;
    boolean wanted = true; // send at least one request, even if an answer has come already
    while (wanted && wantsMore(answering) && (more = batches.hasNext())) {
      send(batches.next(answering.batchesWanted()));
      wanted = !answering.isAnswered();
    }
    if (!more) {
      answering.endInput();
    }
    return !answering.isOver();
  }

  private boolean wantsMore(Client answering) {
    return batches.isMemoryShort()
        ? answering.underWay() == 0
        : answering.wantsMore(call.inFlight());
  }

  private void send(Vectors vectors) throws InterruptedException {
    handler.sent(vectors);
    client.orElseThrow().send(vectors.request(batches.rowsAtATime()));
  }

  /** Takes the next piece of the oldest request's answer, or the end of that answer. */
  private void takeAnswer() throws InterruptedException {
    Client answering = client.orElseThrow();
    int underWay = answering.underWay();
    answer = answering.next();
    countAnswer();
    if (answer.isPresent()) {
      VectorSchemaRoot piece = answer.get().batch();
      refuse(handler.answered(piece, answer.get().rows()));
      columns = Optional.of(piece).filter(some -> some.getRowCount() > 0).map(handler::columns);
    } else if (answering.underWay() < underWay) {
      refuse(handler.ended());
    }
  }

  // CHANGE: edit this for a new metric
  /** Counts the answer taken, and the rows given out before; updates the metrics now and then. */
  private void countAnswer() {
    answer.ifPresent(taken -> counts.add("outputBatches", taken.rows().length));
    countGiven();
    counts.updateAtTimes();
  }

  private void refuse(Optional<String> objection) {
    objection.ifPresent(
        why -> {
          throw new FunctionException("%s answered %s", client.orElseThrow().function(), why);
        });
  }

  private void leaveAnswer() {
    columns = Optional.empty();
    answer.ifPresent(Answer::close);
    answer = Optional.empty();
  }

  private void countGiven() {
    counts.add("numOutputRows", given);
    given = 0;
  }

  /**
   * Restores this thread's record of the current file to its value before the child read, because
   * `input_file_name` in operators above the function reads the record. Keeps the value that the
   * child has set, for the child's next read.
   *
   * @param above the record's value before the child read
   */
  private void restoreFile(Object above) {
    Object below = FILE.getThreadLocalValue();
    if (below != above) {
      fileBelow = Optional.of(below);
      FILE.setThreadLocalValue(above);
    }
  }

  private static TaskKilledException interrupted() {
    Thread.currentThread().interrupt();
    return new TaskKilledException("interrupted while it waited for a sidecar");
  }

  // --- the process that answers ----------------------------------------------------------------

  /**
   * Opens the input, and gets a client. Returns false without a client if the input has no rows and
   * the function is not called in that case.
   */
  private boolean begin() throws InterruptedException {
    if (call instanceof PythonCall python) {
      refuseBothLimits(python);
      starting = new PythonRun(python, context, 0, true, metrics).prepare();
    }
    batches = new Batches(this, input.get());
    if (!batches.hasNext() && !call.isCalledWithNothing()) {
      return false;
    }
    if (client.isEmpty()) { // else meet() has connected already, for generated code
      connect();
    }
    return true;
  }

  /** Throws, like Spark, if the function's results have a limit of rows and a limit of bytes. */
  private void refuseBothLimits(PythonCall python) {
    if (python.udtf().isEmpty()
        && settings.arrowMaxRecordsPerOutputBatch() > 0
        && settings.arrowMaxBytesPerOutputBatch() > 0) {
      throw new IllegalArgumentException(
          "Both max records and max bytes of an Arrow output batch cannot be set at the same time.");
    }
  }

  /**
   * Connects to the sidecar before generated code fills a batch, because the sidecar's ring bounds
   * the bytes of a batch.
   */
  void meet() {
    if (client.isEmpty() && call instanceof SidecarCall) {
      try {
        connect();
      } catch (InterruptedException error) {
        throw interrupted();
      }
    }
  }

  private void connect() throws InterruptedException {
    if (call instanceof SidecarCall sidecar) {
      connect(sidecar);
      return;
    }
    Optional<Vectors> first = batches.hasNext() ? Optional.of(batches.next(1)) : Optional.empty();
    if (!awaitStart()) {
      context.killTaskIfInterrupted();
      throw interrupted();
    }
    client =
        Optional.of(
            SQLConf.withExistingConf(
                settings,
                () ->
                    python(
                        Math.max(
                            batches.groups.joinedBytes(), first.map(Vectors::bytes).orElse(0L)))));
    leaving = client.get()::close;
    if (first.isPresent()) {
      send(first.get());
    }
  }

  /**
   * Waits until the thread that starts a Python worker is done. The start may hang: if the task is
   * killed, the wait ends and returns false.
   */
  private boolean awaitStart() {
    try {
      boolean over = starting.over().getCount() == 0;
      while (!over && !context.isInterrupted()) {
        over = starting.over().await(LOOK_MS, TimeUnit.MILLISECONDS);
      }
      return over;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return false;
    }
  }

  /**
   * Starts the function in a Python worker, and returns the task's client of that worker. Batches
   * go over rings, or over the worker's socket if no rings can be made or the worker cannot attach
   * to them.
   *
   * @param bytes size of a request in bytes, from which the size of the rings follows
   */
  private Client python(long bytes) {
    PythonCall python = (PythonCall) call;
    Consumer<Schema> check = schema -> refuse(handler.objection(schema));
    PythonRun run = new PythonRun(python, context, bytes, true, metrics);
    Optional<WorkerRings> rings = run.begin();
    if (rings.isPresent()) {
      return new WorkerClient(
          rings.get(),
          run.stream(),
          run,
          this::checkSelf,
          counts::add,
          allocator,
          check);
    }
    if (run.isRefused()) {
      run = new PythonRun(python, context, bytes, false, metrics);
      run.begin();
    }
    batches.groups.keepApart();
    return new SocketClient(
        python, run, batches.schema(), this::sendNext, counts::add, allocator, check);
  }

  private boolean sendNext() {
    if (!batches.hasNext()) {
      return false;
    }
    try {
      send(batches.next(1));
    } catch (InterruptedException error) {
      throw interrupted();
    }
    return true;
  }

  // CHANGE: edit this for a new option of a client
  private void connect(SidecarCall call) throws InterruptedException {
    SidecarClient borrowed = Clients.borrow(call, this::checkTask);
    client = Optional.of(borrowed);
    leaving = () -> Clients.giveBack(call, borrowed);
    borrowed.begin(
        // CHANGE: edit this for a new field of a request
        new Work(
            SparkEnv.get().conf().get("spark.app.id", ""),
            context.stageId(),
            context.partitionId(),
            context.taskAttemptId()),
        call.inFlight(),
        call.waits(),
        this::checkTask,
        counts::add,
        allocator,
        schema -> refuse(handler.objection(schema)));
    batches.begin(borrowed, borrowed.requestRingBytes() / SidecarCall.PART);
  }

  private void checkTask() {
    counts.updateAtTimes();
    if (context.isInterrupted() || context.isCompleted()) {
      throw new TaskKilledException("ended while it waited for a sidecar");
    }
  }

  /**
   * Throws if the task has ended: then only a thread other than the task's still waits for answers.
   * A killed task has not ended yet, and waits until Spark's monitor ends its worker.
   */
  private void checkSelf() {
    counts.updateAtTimes();
    if (context.isCompleted()) {
      throw new TaskKilledException("ended while it waited for a Python worker");
    }
  }

  // --- the end ---------------------------------------------------------------------------------

  /** Ends the answers, at the end of the rows or of the task, whichever comes first. */
  @Override
  public synchronized void close() {
    if (closed) {
      return;
    }
    closed = true;
    countGiven();
    counts.update();
    Thread reading = columns.isPresent() ? reader.orElse(null) : null;
    if (reading == null || reading == Thread.currentThread()) {
      release();
    } else {
      // Free the memory only when the other thread has ended: a read of freed memory would crash
      // the JVM.
      Thread waiting = new Thread(() -> releaseAfter(reading), "shmring-sidecar-answers");
      waiting.setDaemon(true);
      waiting.start();
    }
  }

  private void releaseAfter(Thread reading) {
    try {
      reading.join();
    } catch (InterruptedException error) {
      return; // the process ends
    }
    synchronized (this) {
      release();
    }
  }

  private void release() {
    if (released) {
      return;
    }
    released = true;
    if (starting.isOwn()) {
      awaitStart();
    }
    leaveAnswer();
    leaving.run();
    if (batches != null) {
      batches.close();
    }
    ofRows.ifPresent(RowColumns::close);
    allocator.close();
  }

  // --- rows and batches for Spark ---------------------------------------------------------------

  /** Gives Spark the answers' rows or batches; each is valid until the next one. */
  private abstract class Given<R> implements Iterator<R> {
    private R pending; // row or batch found, and not given out yet; null if there is none

    /** Returns the next row or batch; null if there is none. Called with the monitor held. */
    abstract R find();

    @Override
    public final boolean hasNext() {
      if (pending == null) {
        synchronized (AnsweredBatches.this) {
          pending = find();
        }
      }
      return pending != null;
    }

    @Override
    public final R next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      R next = pending;
      pending = null;
      return next;
    }
  }

  public Iterator<InternalRow> rows() {
    return new Given<>() {
      private Iterator<InternalRow> results = Collections.emptyIterator();
      private Function<InternalRow, UnsafeRow> rows; // turns a result row into an output row

      @Override
      InternalRow find() {
        while (!closed && !results.hasNext()) {
          Optional<ColumnarBatch> piece = AnsweredBatches.this.next();
          if (piece.isEmpty()) {
            return null;
          }
          results = piece.get().rowIterator();
          rows = handler.rows(piece.get());
        }
        if (closed) {
          return null;
        }
        given++;
        return rows.apply(results.next());
      }
    };
  }

  public Iterator<ColumnarBatch> columns() {
    return new Given<>() {
      // Rows of the piece that are not given out yet; empty if the piece is given out as columns.
      private Iterator<InternalRow> results = Collections.emptyIterator();
      private ColumnarBatch piece;

      @Override
      ColumnarBatch find() {
        if (closed || isDone()) {
          piece = AnsweredBatches.this.next().orElse(null);
        }
        if (piece == null) {
          return null;
        }
        reader = Optional.of(Thread.currentThread());
        ColumnarBatch found = handler.onlyRows().map(this::nextRows).orElse(piece);
        given += found.numRows();
        return found;
      }

      /** Returns whether all rows of the piece were given out, and no error of a row is left. */
      private boolean isDone() {
        return !results.hasNext() && ofRows.filter(RowColumns::hasFailed).isEmpty();
      }

      private ColumnarBatch nextRows(StructType types) {
        if (ofRows.isEmpty()) {
          ofRows = Optional.of(new RowColumns(SparkTypes.of(settings).schema(types), allocator));
        }
        if (!results.hasNext()) {
          results = piece.rowIterator();
        }
        return ofRows.get().next(results, handler.rows(piece));
      }
    };
  }
}
