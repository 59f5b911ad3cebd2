package io.shmring.spark.request;

import io.shmring.exchange.SidecarClient;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Signature.AnswerHandler;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.internal.SQLConf;

/**
 * Turns a task's rows into requests: an {@link Input} writes rows into {@link Vectors}, and each
 * request sends the batch, or the consecutive batches, in one set of vectors. The vectors keep
 * their values until the request is answered, because the request may have to be sent again; then
 * the vectors take new rows.
 */
final class Batches implements AutoCloseable {
  // Limits of memory, in pages of Spark, if rows can wait in Spark's queue instead: PAGES for all
  // vectors of a task, PAGES_OF_BATCH for one batch. By default, a page is a sixteenth of one core's
  // share of Spark's memory, rounded up to a power of two, from 1 MB to 64 MB. Vectors cannot be
  // spilled, and other operators of the task need pages, too.
  private static final int PAGES = 4;
  private static final int PAGES_OF_BATCH = 2;

  // Most rows, and most bytes, that are written into vectors at a time once keepRows() was called:
  // the rows are then moved from the vectors into Spark's queue.
  private static final int FEW_ROWS = 1024;
  private static final long FEW_BYTES = 1 << 16;

  /**
   * The task whose rows become batches.
   *
   * @param call the call that gets the batches
   * @param settings the settings of the task
   */
  record Owner(
      Call call,
      Signature signature,
      TaskCounts counts,
      SQLConf settings,
      TaskMemoryManager memory,
      BufferAllocator allocator) {}

  private final Owner owner;
  private final Call call;
  private final AnswerHandler handler;
  private final SparkTypes types;
  private final List<Signature.Side> ofRows;
  private final VectorMemory memory;
  private final int mostRows;
  private final VectorPool.Form form;
  private BatchFiller batches;
  private final GroupFiller groups;
  private Input input;
  private final List<VectorPool> pools = new ArrayList<>(); // every pool of this task, to be closed
  private List<VectorPool> sides; // the pool of each side
  private VectorPool generated; // the pool whose vectors generated code writes into
  private long mostBytes;
  // Most bytes that generated code writes into vectors at a time: FEW_BYTES if the rows are moved
  // from the vectors into Spark's queue, else unlimited.
  private long pieceBytes = VectorPool.UNLIMITED;
  // Vectors that generated code has begun to fill before a request takes them.
  private final ArrayDeque<Vectors> ahead = new ArrayDeque<>();
  private final ArrayDeque<Vectors> written = new ArrayDeque<>(); // filled vectors, to be sent next
  private boolean memoryIsShort;
  private Optional<SidecarClient> client = Optional.empty();

  /**
   * @param handler handler of the answers; it keeps rows if vectors would take too much memory
   * @param met action that runs before generated code begins a batch, and may call {@link #begin}:
   *     the code may fill several batches at a time, for example if a row of a join has many
   *     partners
   */
  Batches(Owner owner, Input input, AnswerHandler handler, Runnable met) {
    this.owner = owner;
    this.input = input;
    this.call = owner.call;
    this.handler = handler;
    SQLConf settings = owner.settings;
    this.types = owner.signature.types().in(settings);
    this.ofRows = owner.signature.ofRows();
    this.form =
        new VectorPool.Form(
            input.endsBatches() ? Long.MAX_VALUE : call.wholeBytes(settings),
            call.isStruct(),
            input.isOfLists());
    List<Signature.Side> all = owner.signature.sides();
    this.sides = IntStream.range(0, all.size()).mapToObj(i -> pool(i, all.get(i))).toList();
    this.generated = sides.get(0);
    this.memory = new VectorMemory(owner.memory);
    int rows = settings.arrowMaxRecordsPerBatch(); // 0 or less: no limit of rows
    this.mostRows = rows > 0 ? Math.min(rows, call.mostRows()) : call.mostRows();
    this.batches =
        new BatchFiller(input.endsBatches() ? call.mostRows() : mostRows, call.cutRows());
    this.groups = new GroupFiller(call.joinsGroups(), mostRows);
    // The stage gives rows, not vectors, so rows wait in Spark's queue from the start.
    if (!ofRows.isEmpty() && input instanceof RowInput) {
      beginRows();
    }
    this.mostBytes =
        mayKeepRows() ? PAGES_OF_BATCH * memory.pageBytes() : VectorPool.UNLIMITED;
    input.writeTo(
        () -> {
          met.run();
          ahead.add(emptyForCode());
          return ahead.getLast().writer();
        },
        this.mostRows);
  }

  private VectorPool pool(int number, Signature.Side side) {
    VectorPool pool = new VectorPool(number, side, types, form, owner.allocator);
    pools.add(pool);
    return pool;
  }

  private Vectors emptyForCode() {
    return generated.take(Math.min(mostBytes, pieceBytes));
  }

  /**
   * Sets the client that sends the batches, before the first batch is asked for.
   *
   * @param bytes most bytes of a batch, retained rows included; a larger row is a batch of its own
   */
  void begin(SidecarClient client, long bytes) {
    this.client = Optional.of(client);
    mostBytes = Math.min(mostBytes, bytes);
  }

  boolean hasNext() {
    return !written.isEmpty() || input.hasNext();
  }

  /** Returns the bytes at which a request takes no more groups; 0 if groups are not joined. */
  long joinedBytes() {
    return groups.joinedBytes();
  }

  /**
   * Puts only one group into each further request: on a socket, Spark's worker reads each group as
   * an Arrow stream of its own.
   */
  void keepGroupsApart() {
    groups.keepApart();
  }

  /** Returns the number of rows that the function gets at a time; 0 for all rows of a request. */
  int rowsAtATime() {
    return input.isOfGroups() ? 0 : mostRows;
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
   * @param most most batches in the vectors, if batches may be joined at all
   */
  Vectors next(int most) {
    if (written.isEmpty()) {
      write(most);
    }
    Vectors vectors = written.remove();
    vectors.finish();
    memoryIsShort = !holdsAll();
    boolean isAlone = pools.stream().mapToInt(VectorPool::size).sum() == 1 + ahead.size();
    if (mayKeepRows() && (isCutShort(vectors) || memoryIsShort && isAlone)) {
      keepRows(vectors);
      return next(most);
    }
    if (memoryIsShort && call.needsMemory() && (isAlone || ofRows.isEmpty())) {
      throw memory.refused();
    }
    // CHANGE: edit this for a new metric
    owner.counts.add("numInputRows", vectors.inputRows());
    owner.counts.add("batches", vectors.batches());
    return vectors;
  }

  private void write(int most) {
    if (input.isOfGroups() && !input.isWhole()) {
      writeGroups();
      return;
    }
    boolean isAhead = input instanceof GeneratedInput && !ahead.isEmpty();
    Vectors vectors = isAhead ? ahead.remove() : sides.get(0).take(mostBytes);
    if (input.isWhole()) {
      GroupFiller.fillWhole(input, vectors, client.orElseThrow());
    } else {
      batches.fill(input, vectors, most, mostBytes);
    }
    written.add(vectors);
  }

  private void writeGroups() {
    List<Vectors> filled = sides.stream().map(side -> side.take(mostBytes)).toList();
    groups.fill(input, filled);
    for (Vectors vectors : filled) {
      if (vectors.groups().length == 0) {
        vectors.leave();
      } else {
        written.add(vectors);
      }
    }
  }

  /**
   * Returns whether Spark grants memory for all vectors. If Spark refuses, frees the empty vectors
   * and asks again.
   */
  private boolean holdsAll() {
    long most = mayKeepRows() ? PAGES * memory.pageBytes() : VectorPool.UNLIMITED;
    if (memory.holds(owner.allocator.getAllocatedMemory(), most)) {
      return true;
    }
    sides.forEach(VectorPool::closeFree);
    return memory.holds(owner.allocator.getAllocatedMemory(), most);
  }

  // --- rows that wait in Spark's queue --------------------------------------------------------

  /** Whether rows can wait in Spark's queue instead of columns in vectors. */
  private boolean mayKeepRows() {
    return !ofRows.isEmpty() && !(input instanceof RowInput);
  }

  private void beginRows() {
    sides = List.of(pool(0, ofRows.get(0)));
    owner.counts.add("rowTasks", 1);
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
    generated = pool(0, owner.signature.sides().get(0));
    pieceBytes = FEW_BYTES;
    mostBytes = client.isEmpty() ? VectorPool.UNLIMITED : mostBytes;
    input = new RowInput(new WrittenRows(written, input), handler.keepRows().orElseThrow());
    batches = new BatchFiller(mostRows, call.cutRows());
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
