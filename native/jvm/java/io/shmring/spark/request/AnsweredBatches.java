package io.shmring.spark.request;

import io.shmring.sidecar.Answer;
import io.shmring.sidecar.SidecarClient;
import io.shmring.sidecar.SidecarException;
import io.shmring.sidecar.Work;
import java.util.Iterator;
import java.util.Optional;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A task's answers, piece by piece. Requests are sent as they are needed, so many ahead as the user
 * allows; an answer is read where it lies, and its place in the ring is free before the next one is
 * waited for.
 *
 * <p>Another thread than the task's may read them, and the task may end meanwhile: all methods hold
 * the monitor.
 */
public final class AnsweredBatches implements AutoCloseable {
  /** A batch takes at most one such part of a ring, so that others' find room beside it. */
  private static final int PART = 8;

  private final SidecarTask<?, ?> task;
  private final TaskContext context;
  private final Input input;
  private final BufferAllocator allocator;
  private final Passage passage;
  private final WaitLog waits;
  private Optional<SidecarClient> client = Optional.empty();
  private Batches batches;
  private Optional<Answer> answer = Optional.empty();
  private Optional<ColumnarBatch> columns = Optional.empty(); // of that
  private long given; // rows that the metrics do not know of yet
  private Optional<Thread> reader = Optional.empty(); // of the piece, outside of the monitor
  private boolean finished;
  private boolean closed;
  private boolean released;

  <T> AnsweredBatches(SidecarTask<T, ?> task, Iterator<T> child, TaskContext context) {
    this.task = task;
    this.context = context;
    this.passage = task.signature.begin(context.partitionId());
    this.input = task.kind.of(child, passage);
    this.waits = new WaitLog(context, task.call.sidecar(), SparkEnv.get().conf());
    this.allocator = // last: nobody closes what a constructor that throws has made
        ArrowUtils.rootAllocator().newChildAllocator("shmring sidecar", 0, Long.MAX_VALUE);
  }

  /** The next piece, if there is one; the one before is gone. */
  synchronized Optional<ColumnarBatch> next() {
    do {
      if (finished) {
        release();
        return Optional.empty();
      }
      leaveAnswer();
      advanceOrEnd();
    } while (columns.isEmpty());
    return columns;
  }

  /** The rows of a piece, each until the next one. */
  Iterator<UnsafeRow> rows(ColumnarBatch piece) {
    return passage.receive(piece);
  }

  boolean isClosed() {
    return closed;
  }

  /** This thread reads the last piece until it asks for the next one, or has ended. */
  void readHere() {
    reader = Optional.of(Thread.currentThread());
  }

  /** Counts rows that Spark has got; the caller holds the monitor. */
  void count(int rows) {
    given += rows;
  }

  private void advanceOrEnd() {
    try {
      advance();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new TaskKilledException("interrupted while it waited for a sidecar");
    }
  }

  /** Takes the next piece of the answers, and keeps as many requests under way as may be. */
  private void advance() throws InterruptedException {
    if (batches == null) {
      VectorMemory memory = new VectorMemory(context.taskMemoryManager());
      batches = new Batches(input, task.signature, allocator, memory, task.rowsPerBatch);
    }
    if (client.isEmpty() && !batches.hasNext()) { // an empty partition troubles nobody
      finish();
      return;
    }
    SidecarClient sidecar = entered();
    boolean wanted = true; // one before each answer that is there, so that the sidecar has work
    while (wanted && sidecar.underWay() < task.call.inFlight() && batches.hasNext()) {
      Batches.Vectors vectors = batches.next(sidecar.batchesWanted());
      passage.sent(vectors);
      waits.begin();
      sidecar.send(
          batches.request(vectors), batches.rowsAtATime(), () -> batches.giveBack(vectors));
      wanted = !sidecar.isAnswered();
    }
    if (sidecar.underWay() == 0) {
      finish();
      return;
    }
    waits.begin();
    answer = sidecar.next();
    tell();
    if (answer.isEmpty()) {
      refuse(passage.ended());
      return;
    }
    VectorSchemaRoot piece = answer.get().batch();
    refuse(passage.answered(piece));
    columns = Optional.of(piece).filter(some -> some.getRowCount() > 0).map(passage::columns);
  }

  private void refuse(Optional<String> objection) {
    objection.ifPresent(
        why -> {
          throw new SidecarException(
              String.format("%s answered %s", client.orElseThrow().function(), why));
        });
  }

  private SidecarClient entered() throws InterruptedException {
    if (client.isEmpty()) {
      SidecarCall call = task.call;
      waits.begin();
      SidecarClient borrowed = Clients.borrow(call, this::checkTask);
      client = Optional.of(borrowed);
      borrowed.begin(
          work(),
          call.inFlight(),
          call.waits(),
          this::checkTask,
          allocator,
          schema -> refuse(passage.objection(schema)));
      input.begin(borrowed);
      batches.limit(borrowed.requestRingBytes() / PART);
    }
    return client.get();
  }

  private Work work() {
    String application = SparkEnv.get().conf().get("spark.app.id", "");
    return new Work(
        application, context.stageId(), context.partitionId(), context.taskAttemptId());
  }

  private void checkTask() {
    if (context.isInterrupted() || context.isCompleted()) {
      throw new TaskKilledException("ended while it waited for a sidecar");
    }
    waits.check(
        () -> client.map(SidecarClient::workers).orElse("it has no room, or has not started"));
  }

  private void leaveAnswer() {
    columns = Optional.empty();
    answer.ifPresent(Answer::close);
    answer = Optional.empty();
  }

  /** Lets Spark's UI show what the task has done so far: its end may be far. */
  private void tell() {
    SidecarMetrics metrics = task.metrics;
    metrics.add(client.orElseThrow().takeCounters());
    metrics.outputRows().add(given);
    given = 0;
    metrics.inputRows().add(batches.takeRows());
    metrics.batches().add(batches.takeCount());
  }

  private void finish() {
    finished = true;
    close();
  }

  /** At the end of the rows or of the task, whichever comes first. */
  @Override
  public synchronized void close() {
    if (closed) {
      return;
    }
    closed = true;
    finished = true;
    if (client.isPresent()) {
      tell();
    }
    Thread reading = columns.isPresent() ? reader.orElse(null) : null;
    if (reading == null || reading == Thread.currentThread()) {
      release();
    } else { // memory that goes under its hands would end the process
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
    leaveAnswer();
    client.ifPresent(sidecar -> Clients.giveBack(task.call, sidecar));
    if (batches != null) {
      batches.close();
    }
    allocator.close();
  }
}
