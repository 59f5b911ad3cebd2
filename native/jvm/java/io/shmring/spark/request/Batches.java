package io.shmring.spark.request;

import io.shmring.exchange.SidecarClient;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.SparkTypes;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * Turns a task's rows into requests: an {@link Input} writes rows into {@link Vectors}, and each
 * request sends the batch, or the consecutive batches, in one set of vectors. The vectors keep
 * their values until the request is answered, because the request may have to be sent again. After
 * the answer, the vectors take new rows.
 */
final class Batches implements AutoCloseable {
  // Limits of memory, in pages of Spark, if rows can wait in Spark's queue instead: PAGES for all
  // vectors of a task, PAGES_OF_BATCH for one batch. By default, a page is a sixteenth of one core's
  // share of Spark's memory, rounded up to a power of two, from 1 MB to 64 MB. Vectors cannot be
  // spilled, and other operators of the task need pages, too.
  private static final int PAGES = 4;
  private static final int PAGES_OF_BATCH = 2;

  // Maximum numbers of rows and bytes that are written into vectors at a time once keepRows() was
  // called: the rows are then moved from the vectors into Spark's queue.
  private static final int FEW_ROWS = 1024;
  private static final long FEW_BYTES = 1 << 16;

  // A further batch joins a request only if the request is then expected to have at most this many
  // bytes. In a request of this size, the fixed cost of a request hardly counts.
  private static final long MOST_TOGETHER = 1 << 20;

  // Time, from the start of filling a request, after which no further batch joins the request: the
  // function should not wait for a slow child. The batch being filled is still finished.
  private static final long READY_NANOS = 1_000_000;

  // After the child has taken longer than READY_NANOS to give a row, this many requests carry only
  // one batch each: the child will probably be as slow again.
  private static final int ALONE = 16;

  private final AnsweredBatches task;
  private final Call call;
  private final SparkTypes types;
  private final VectorMemory memory;
  private final int mostRows; // maximum number of rows of a batch of the function
  private final VectorPool.Form form;
  final GroupFiller groups;
  private Input input;
  // Number of coming requests that carry one batch each, because the child was slow: see ALONE.
  private int alone;
  private int cut; // rows taken from the child since the last multiple of cutRows()
  private final List<VectorPool> pools = new ArrayList<>(); // every pool of this task, to be closed
  private List<VectorPool> sides; // the pool of each side
  private VectorPool generated; // the pool whose vectors generated code writes into
  private long mostBytes;
  // Maximum bytes that generated code writes into vectors at a time: FEW_BYTES if the rows are
  // moved from the vectors into Spark's queue, else unlimited.
  private long pieceBytes = VectorPool.UNLIMITED;
  // Vectors that generated code has begun to fill before a request takes them.
  private final ArrayDeque<Vectors> ahead = new ArrayDeque<>();
  private final ArrayDeque<Vectors> written = new ArrayDeque<>(); // filled vectors, to be sent next
  private boolean memoryIsShort;
  private Optional<SidecarClient> client = Optional.empty();

  /**
   * @param task the task whose rows become batches
   * @param input the task's rows
   */
  Batches(AnsweredBatches task, Input input) {
    this.task = task;
    this.input = input;
    this.call = task.call;
    this.types = task.signature.types().in(task.settings);
    this.form =
        new VectorPool.Form(
            input.endsBatches() ? Long.MAX_VALUE : call.wholeBytes(task.settings),
            call.isStruct(),
            input instanceof GroupInput grouped && grouped.isOfLists());
    List<Signature.Side> all = task.signature.sides();
    this.sides = IntStream.range(0, all.size()).mapToObj(i -> pool(i, all.get(i))).toList();
    this.generated = sides.get(0);
    this.memory = new VectorMemory(task.context.taskMemoryManager());
    int rows = task.settings.arrowMaxRecordsPerBatch(); // 0 or less: no limit of rows
    this.mostRows = rows > 0 ? Math.min(rows, call.mostRows()) : call.mostRows();
    this.groups = new GroupFiller(call.joinsGroups(), mostRows);
    // No generated code writes this input's rows into vectors, so the rows wait in Spark's queue
    // from the start.
    if (task.signature.rowsMayWait() && input instanceof RowInput) {
      beginRows();
    }
    this.mostBytes =
        mayKeepRows() ? PAGES_OF_BATCH * memory.pageBytes() : VectorPool.UNLIMITED;
    input.writeTo(
        () -> {
          // Connect first, because the ring of a sidecar limits the bytes of a batch. Generated
          // code may ask for several batches at a time, for example if a row of a join has many
          // partners.
          task.meet();
          ahead.add(emptyForCode());
          return ahead.getLast().writer();
        },
        this.mostRows);
  }

  private VectorPool pool(int number, Signature.Side side) {
    VectorPool pool = new VectorPool(number, side, types, form, task.allocator);
    pools.add(pool);
    return pool;
  }

  private Vectors emptyForCode() {
    return generated.take(Math.min(mostBytes, pieceBytes));
  }

  /**
   * Sets the client that sends the batches, before the first batch is asked for.
   *
   * @param bytes maximum bytes of a batch, retained rows included; a larger row is a batch of its
   *     own
   */
  void begin(SidecarClient client, long bytes) {
    this.client = Optional.of(client);
    mostBytes = Math.min(mostBytes, bytes);
  }

  boolean hasNext() {
    return !written.isEmpty() || input.hasNext();
  }

  /** Returns the number of rows that the function gets at a time; 0 for all rows of a request. */
  int rowsAtATime() {
    return input instanceof GroupInput ? 0 : mostRows;
  }

  /** Returns the schema of the first side's batches, as an IPC message. */
  byte[] schema() {
    return sides.get(0).schemaBytes;
  }

  /**
   * Whether Spark refused memory for the last vectors. The task then has only one request under way
   * at a time.
   */
  boolean isMemoryShort() {
    return memoryIsShort;
  }

  /**
   * Returns vectors filled with the next batches, as many as the child gives without delay;
   * {@link #hasNext} must have returned true.
   *
   * @param most maximum number of batches in the vectors, if batches may be joined at all
   */
  Vectors next(int most) {
    if (written.isEmpty()) {
      fill(most);
    }
    Vectors vectors = written.remove();
    vectors.finish();
    if (mustKeepRows(vectors)) {
      keepRows(vectors);
      return next(most);
    }
    // CHANGE: edit this for a new metric
    task.counts.add("numInputRows", vectors.inputRows());
    task.counts.add("batches", vectors.batches());
    return vectors;
  }

  /**
   * Fills the vectors of the next request. Fills the vectors of two requests, one for each side, if
   * the next rows are a cogroup for a Python worker.
   */
  private void fill(int most) {
    if (input instanceof GroupInput grouped) {
      writeGroups(grouped);
    } else {
      write(most);
    }
  }

  /**
   * Fills vectors with one batch, or with several that go as one request.
   *
   * @param most maximum number of batches of the request; only one batch is filled while `alone` is
   *     above 0
   */
  private void write(int most) {
    Vectors vectors = nextVectors();
    RootWriter writer = vectors.writer();
    int full = fullBatch();
    int joined = alone > 0 ? 1 : most;
    alone = Math.max(0, alone - 1);
    long begun = System.nanoTime();
    long bytes = 0;
    long moreBytes;
    int batches = 0;
    int rows = 0;
    int more;
    do {
      more = append(writer, full);
      moreBytes = writer.bytes() - bytes;
      rows += more;
      bytes += moreBytes;
      batches += more > 0 ? 1 : 0; // no batch if the vectors were full, and fill() wrote no row
    } while (batches < joined
        && more == full // only the last batch of a request may have fewer rows
        && bytes + moreBytes <= Math.min(MOST_TOGETHER, mostBytes / 2)
        && System.nanoTime() - begun < READY_NANOS
        && goesOn());
    input.cut();
    vectors.filled(rows, batches);
    written.add(vectors);
  }

  /** Returns vectors that generated code has begun to fill, or empty ones. */
  private Vectors nextVectors() {
    boolean isAhead = input instanceof GeneratedInput && !ahead.isEmpty();
    return isAhead ? ahead.remove() : sides.get(0).take(mostBytes);
  }

  /** Returns the number of rows of a full batch of the function. */
  private int fullBatch() {
    return input.endsBatches() ? call.mostRows() : mostRows;
  }

  /** Writes rows of one batch, which may end before it is full. Returns their number. */
  private int append(RootWriter writer, int full) {
    int interval = call.cutRows();
    int rows = input.fill(writer, interval > 0 ? Math.min(full, interval - cut) : full);
    cut = interval > 0 ? (cut + rows) % interval : 0;
    return rows;
  }

  private boolean goesOn() {
    long asked = System.nanoTime();
    boolean more = input.hasNext();
    if (System.nanoTime() - asked > READY_NANOS) {
      alone = ALONE;
    }
    return more;
  }

  private void writeGroups(GroupInput grouped) {
    if (grouped.isWhole()) {
      Vectors vectors = sides.get(0).take(mostBytes);
      GroupFiller.fillWhole(grouped, vectors, client.orElseThrow());
      written.add(vectors);
      return;
    }
    List<Vectors> filled = sides.stream().map(side -> side.take(mostBytes)).toList();
    groups.fill(grouped, filled);
    for (Vectors vectors : filled) {
      if (vectors.groups().length == 0) {
        vectors.leave();
      } else {
        written.add(vectors);
      }
    }
  }

  /**
   * Asks Spark for the vectors' memory. Returns whether the vectors take too much memory, so that
   * rows have to wait in Spark's queue from now on. Throws if rows cannot wait, and the function
   * needs all its vectors in memory.
   */
  private boolean mustKeepRows(Vectors filled) {
    memoryIsShort = !holdsAll();
    boolean isAlone = pools.stream().mapToInt(VectorPool::size).sum() == 1 + ahead.size();
    if (mayKeepRows() && (isCutShort(filled) || memoryIsShort && isAlone)) {
      return true;
    }
    if (memoryIsShort && call.needsMemory() && (isAlone || !task.signature.rowsMayWait())) {
      throw memory.refused();
    }
    return false;
  }

  /**
   * Returns whether Spark grants memory for all vectors. If Spark refuses, frees the empty vectors
   * and asks again.
   */
  private boolean holdsAll() {
    long most = mayKeepRows() ? PAGES * memory.pageBytes() : VectorPool.UNLIMITED;
    if (memory.holds(task.allocator.getAllocatedMemory(), most)) {
      return true;
    }
    sides.forEach(VectorPool::closeFree);
    return memory.holds(task.allocator.getAllocatedMemory(), most);
  }

  // --- rows that wait in Spark's queue --------------------------------------------------------

  /** Whether the task keeps columns in vectors, and can still change to rows in Spark's queue. */
  private boolean mayKeepRows() {
    return task.signature.rowsMayWait() && !(input instanceof RowInput);
  }

  private void beginRows() {
    Signature.Side side = task.signature.sides().get(0);
    sides = List.of(pool(0, Signature.Side.of(side.sent(), side.metadata())));
    task.counts.add("rowTasks", 1);
  }

  /**
   * Whether the limit of bytes ended a batch before it had as many rows as Spark's own batch would
   * have.
   */
  private boolean isCutShort(Vectors vectors) {
    boolean isShort =
        input.endsBatches() ? input.goesOn() : vectors.inputRows() < mostRows;
    return client.isEmpty()
        && isShort
        && !vectors.writer().isWhole()
        && input.hasNext();
  }

  /**
   * Lets rows wait for their answers in Spark's queue from now on: the rows already in vectors, and
   * all further ones.
   */
  private void keepRows(Vectors written) {
    sides.get(0).end();
    generated = pool(0, task.signature.sides().get(0));
    pieceBytes = FEW_BYTES;
    mostBytes = client.isEmpty() ? VectorPool.UNLIMITED : mostBytes;
    input = new RowInput(new WrittenRows(written, input), task.handler.keepRows().orElseThrow());
    alone = 0;
    cut = 0;
    beginRows();
  }

  /**
   * Iterates over rows in vectors: first the rows already written, then the input's further rows,
   * FEW_ROWS at a time.
   */
  private final class WrittenRows implements Iterator<InternalRow> {
    private final Input written;
    private Vectors vectors;
    private Iterator<InternalRow> rows;

    WrittenRows(Vectors first, Input written) {
      this.written = written;
      read(first);
    }

    private void read(Vectors next) {
      vectors = next;
      rows = FlatColumn.batch(next.root()).rowIterator();
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext()) {
        if (!written.hasNext()) {
          return false;
        }
        vectors.leave();
        Vectors next = ahead.isEmpty() ? emptyForCode() : ahead.remove();
        written.fill(next.writer(), FEW_ROWS);
        written.cut();
        next.finish();
        read(next);
      }
      return true;
    }

    @Override
    public InternalRow next() {
      return rows.next();
    }
  }

  @Override
  public void close() {
    pools.forEach(VectorPool::close);
    memory.close();
  }
}
