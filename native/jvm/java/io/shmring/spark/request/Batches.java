package io.shmring.spark.request;

import io.shmring.arrow.EncodedBatch;
import io.shmring.sidecar.SidecarClient;
import io.shmring.spark.columns.FlatColumn;
import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.columns.RowSink;
import io.shmring.spark.columns.SparkTypes;
import io.shmring.spark.request.Signature.AnswerHandler;
import io.shmring.spark.request.Signature.OfRows;
import java.io.Serializable;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Turns a task's rows into requests: an {@link Input} writes rows into vectors, and each request
 * sends the batch, or the consecutive batches, in one set of vectors. The vectors keep their values
 * until the request is answered, because the request may have to be sent again; then the vectors
 * take new rows.
 */
public final class Batches implements AutoCloseable {
  // A limit that no batch reaches; twice this limit does not overflow a long.
  private static final long UNLIMITED = Long.MAX_VALUE / 2;

  // Bytes of a request above which the fixed cost of a request hardly counts.
  private static final long MOST_TOGETHER = 1 << 20;

  // Time, from the start of filling a request, after which no further batch joins the request. The
  // batch being filled is still finished.
  private static final long READY_NANOS = 1_000_000;

  // Limits at which a request takes no more groups: bytes, rows, or time spent filling it.
  private static final long JOINED_BYTES = 1 << 19;
  private static final int JOINED_ROWS = 10_000;
  private static final long JOINED_NANOS = 50_000_000;

  // Number of requests that carry only one batch each, after the child has taken longer than
  // READY_NANOS to give a row.
  private static final int ALONE = 16;

  // Most pages of Spark's memory that a task's vectors, and one batch of them, may take if rows can
  // wait in Spark's queue instead. A page is a sixteenth of the tasks' memory. Vectors cannot be
  // spilled, and other operators need pages, too.
  private static final int PAGES = 4;
  private static final int PAGES_OF_BATCH = 2;

  // Most rows, and most bytes, written into vectors at a time if the rows then move from there into
  // Spark's queue.
  private static final int FEW_ROWS = 1024;
  private static final long FEW_BYTES = 1 << 16;

  /** One input of a call: a cogroup has two sides, every other call has one. */
  private final class Side {
    private final Signature.Side side;
    private final Schema written;
    private final List<Integer> places; // places of the sent columns among the written ones
    private final byte[] schemaBytes; // schema of the sent columns, as an IPC message
    private final ArrayDeque<Vectors> free = new ArrayDeque<>();
    private Optional<Vectors> last = Optional.empty(); // the vectors made last
    private long pieceBytes = UNLIMITED; // most bytes of vectors whose rows go to the queue
    private boolean isOver; // whether vectors given back are freed, not reused

    Side(Signature.Side side, SparkTypes types) {
      this.side = side;
      this.written = types.schema(side.written());
      this.places = side.places();
      this.schemaBytes =
          EncodedBatch.schemaBytes(
              new Schema(types.schema(side.sent()).getFields(), side.metadata()));
    }

    Vectors empty() {
      Vectors vectors = free.isEmpty() ? made() : free.pop();
      vectors.writers.forEach(writer -> writer.reset(Math.min(mostBytes, pieceBytes)));
      vectors.groups.clear();
      vectors.filled = 0;
      return vectors;
    }

    private Vectors made() {
      Vectors vectors = new Vectors(this, VectorSchemaRoot.create(written, allocator));
      last = Optional.of(vectors);
      all.add(vectors);
      return vectors;
    }

    /** Gives back the memory of the empty vectors. */
    void closeFree() {
      free.forEach(Vectors::close);
      all.removeAll(free);
      free.clear();
    }
  }

  /** Vectors of one request, used again and again. */
  final class Vectors {
    private final Side side;
    private final VectorSchemaRoot root;
    private final List<RootWriter> writers; // one writer, or one for each list of a cogroup
    private VectorSchemaRoot part; // slice that part() returned last; the root if none
    private int filled; // number of the input's rows in the vectors
    private int batches; // number of the function's batches in the vectors
    // Number of rows of each group, in a request to a Python worker; else empty.
    private final List<Integer> groups = new ArrayList<>();
    private boolean goesOn; // whether more rows of the last group follow

    private Vectors(Side side, VectorSchemaRoot root) {
      this.side = side;
      this.root = root;
      this.part = root;
      this.writers =
          input.isOfLists()
              ? IntStream.range(0, root.getFieldVectors().size()).mapToObj(this::ofList).toList()
              : List.of(
                  new RootWriter(
                      root,
                      side.places,
                      wholeBytes,
                      call.isStruct(),
                      side.last.map(Vectors::writer)));
    }

    private RootWriter ofList(int place) {
      return new RootWriter(
          (ListVector) root.getVector(place), side.last.map(other -> other.writers.get(place)));
    }

    private RootWriter writer() {
      return writers.get(0);
    }

    private void finish() {
      writers.forEach(RootWriter::finish);
      if (input.isOfLists()) {
        root.setRowCount(1);
      }
    }

    int rows() {
      return root.getRowCount();
    }

    /** Returns the number of the vectors' side: 0, or 1 for the right side of a cogroup. */
    int side() {
      return sides.indexOf(side);
    }

    /** Returns the number of rows of each group; none unless a Python worker gets groups. */
    int[] groups() {
      return groups.stream().mapToInt(Integer::intValue).toArray();
    }

    /** Whether more rows of the last group follow. */
    boolean goesOn() {
      return goesOn;
    }

    /** Returns the bytes of all columns. */
    long bytes() {
      return root.getFieldVectors().stream().mapToLong(FieldVector::getBufferSize).sum();
    }

    /** Returns a slice of the rows, valid until the next call or the vectors' return. */
    VectorSchemaRoot part(int first, int count) {
      leavePart();
      part = root.slice(first, count);
      return part;
    }

    /** Gives the vectors back for reuse. Call it once for each request, after the answer. */
    void leave() {
      leavePart();
      side.free.push(this);
      if (side.isOver) {
        side.closeFree();
      }
    }

    private void leavePart() {
      if (part != root) {
        part.close();
        part = root;
      }
    }

    private void close() {
      leavePart();
      root.close();
    }
  }

  private final Call call;
  private final AnswerHandler handler;
  private final SparkTypes types;
  private final List<Signature.Side> ofRows;
  private final BufferAllocator allocator;
  private final VectorMemory memory;
  private final int mostRows;
  private final long wholeBytes;
  private final SidecarTask.Metrics metrics;
  private Input input;
  private List<Side> sides;
  private Side generated; // the side whose vectors generated code writes into
  private long mostBytes;
  private final List<Vectors> all = new ArrayList<>();
  // Vectors that generated code has begun to fill before a request takes them.
  private final ArrayDeque<Vectors> ahead = new ArrayDeque<>();
  private final ArrayDeque<Vectors> written = new ArrayDeque<>(); // filled vectors, to be sent next
  private boolean apart; // whether each group is a request of its own
  private int groupsWanted = 1; // groups of the next request; small at first, for slow functions
  private int alone; // number of next requests that carry only one batch each
  private int cut; // rows since the last multiple of call.cutRows(); each multiple ends a batch
  private boolean memoryIsShort;
  private Optional<SidecarClient> client = Optional.empty();

  /**
   * @param call the call that gets the batches
   * @param settings the task's settings
   * @param handler handler of the answers; it keeps rows if vectors would take too much memory
   * @param met action that runs before generated code begins a batch, and may call {@link #begin}:
   *     the code may fill several batches at a time, for example if a row of a join has many
   *     partners
   */
  Batches(
      Input input,
      Call call,
      Signature signature,
      BufferAllocator allocator,
      TaskMemoryManager taskMemory,
      SQLConf settings,
      SidecarTask.Metrics metrics,
      AnswerHandler handler,
      Runnable met) {
    this.input = input;
    this.call = call;
    this.handler = handler;
    this.types = signature.types().in(settings);
    this.ofRows = signature.ofRows();
    this.sides = signature.sides().stream().map(side -> new Side(side, types)).toList();
    this.generated = sides.get(0);
    this.allocator = allocator;
    this.memory = new VectorMemory(taskMemory);
    int rows = settings.arrowMaxRecordsPerBatch(); // 0 or less: as many as the ring takes
    this.mostRows = rows > 0 ? Math.min(rows, call.mostRows()) : call.mostRows();
    this.wholeBytes = call.wholeBytes(settings);
    this.metrics = metrics;
    // The stage gives rows, not vectors, so rows wait in Spark's queue from the start.
    if (!ofRows.isEmpty() && input instanceof RowInput) {
      beginRows();
    }
    this.mostBytes = mayKeepRows() ? PAGES_OF_BATCH * memory.pageBytes() : UNLIMITED;
    input.writeTo(
        () -> {
          met.run();
          ahead.add(generated.empty());
          return ahead.getLast().writer();
        },
        this.mostRows);
  }

  /** Whether rows can wait in Spark's queue instead of columns in vectors. */
  private boolean mayKeepRows() {
    return !ofRows.isEmpty() && !(input instanceof RowInput);
  }

  private void beginRows() {
    sides = List.of(new Side(ofRows.get(0), types));
    metrics.add("rowTasks", 1);
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
    return call.joinsGroups() ? JOINED_BYTES : 0;
  }

  /**
   * Puts only one group into each further request, as the streams of a socket need. The first
   * request always has one group.
   */
  void keepGroupsApart() {
    apart = true;
    groupsWanted = 1;
  }

  /** Returns the number of rows that the function gets at a time; 0 for all rows of a request. */
  int rowsAtATime() {
    return input.isOfGroups() ? 0 : mostRows;
  }

  /**
   * Returns vectors filled with the next batches, as many as the child gives without delay;
   * {@link #hasNext} must have returned true.
   *
   * @param most limit of the batches in the vectors, if batches may be joined at all
   */
  Vectors next(int most) {
    if (written.isEmpty()) {
      write(most);
    }
    Vectors vectors = written.remove();
    vectors.finish();
    memoryIsShort = !holdsAll();
    boolean isAlone = all.size() == 1 + ahead.size();
    if (mayKeepRows() && (isCutShort(vectors) || memoryIsShort && isAlone)) {
      keepRows(vectors);
      return next(most);
    }
    if (memoryIsShort && call.needsMemory() && (isAlone || ofRows.isEmpty())) {
      throw memory.refused();
    }
    metrics.add("numInputRows", vectors.filled);
    metrics.add("batches", vectors.batches);
    return vectors;
  }

  private void write(int most) {
    if (input.isOfGroups() && !input.isWhole()) {
      fillGroups();
      return;
    }
    boolean isAhead = input instanceof GeneratedInput && !ahead.isEmpty();
    Vectors vectors = isAhead ? ahead.remove() : sides.get(0).empty();
    if (input.isWhole()) {
      fillFrames(vectors);
    } else {
      fill(vectors, most);
    }
    written.add(vectors);
  }

  /**
   * Writes the next groups or cogroups, or the next batch of a group that is larger than a batch.
   */
  private void fillGroups() {
    List<Vectors> filled = sides.stream().map(Side::empty).toList();
    long begun = System.nanoTime();
    long bytes;
    int rows = 0;
    int groups = 0;
    do {
      Vectors vectors = filled.get(input.side());
      int more = input.fill(vectors.writer(), mostRows);
      vectors.groups.add(more);
      vectors.filled += more;
      vectors.goesOn = input.goesOn();
      rows += more;
      groups += input.side() == 0 ? 1 : 0;
      bytes = filled.stream().mapToLong(each -> each.writer().bytes()).sum();
    } while (!input.goesOn()
        && (input.side() > 0
            || groups < groupsWanted
                && bytes < JOINED_BYTES
                && rows < JOINED_ROWS
                && System.nanoTime() - begun < JOINED_NANOS
                && input.hasNext()));
    groupsWanted = call.joinsGroups() && !apart ? Math.min(2 * groupsWanted, JOINED_ROWS) : 1;
    filled.forEach(vectors -> vectors.batches = vectors.groups.size());
    filled.forEach(vectors -> (vectors.groups.isEmpty() ? vectors.side.free : written).add(vectors));
  }

  /**
   * Returns whether Spark grants memory for all vectors. If Spark refuses, frees the empty vectors
   * and asks again.
   */
  private boolean holdsAll() {
    long most = mayKeepRows() ? PAGES * memory.pageBytes() : UNLIMITED;
    if (memory.holds(allocator.getAllocatedMemory(), most)) {
      return true;
    }
    sides.forEach(Side::closeFree);
    return memory.holds(allocator.getAllocatedMemory(), most);
  }

  /**
   * Whether the limit of bytes ended a batch before it had as many rows as Spark's own batch would
   * have.
   */
  private boolean isCutShort(Vectors vectors) {
    return client.isEmpty()
        && vectors.filled < mostRows
        && !vectors.writer().isWhole()
        && input.hasNext();
  }

  /** Lets rows wait in Spark's queue from now on: the written rows and all further ones. */
  private void keepRows(Vectors written) {
    Side before = sides.get(0);
    before.isOver = true;
    before.closeFree();
    generated = new Side(before.side, types);
    generated.pieceBytes = FEW_BYTES;
    mostBytes = client.isEmpty() ? UNLIMITED : mostBytes;
    input = new RowInput(new WrittenRows(written, input), handler.keepRows().orElseThrow());
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
      rows = FlatColumn.batch(next.root).rowIterator();
    }

    @Override
    public boolean hasNext() {
      while (!rows.hasNext()) {
        if (!written.hasNext()) {
          return false;
        }
        vectors.leave();
        Vectors next = ahead.isEmpty() ? generated.empty() : ahead.remove();
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

  /** Fills a batch, or several, as far as the writer has room. */
  private void fill(Vectors vectors, int most) {
    RootWriter writer = vectors.writer();
    int joined = alone > 0 ? 1 : most;
    alone = Math.max(0, alone - 1);
    long begun = System.nanoTime();
    long bytes = 0;
    long moreBytes;
    int batches = 0;
    int filled = 0;
    int more;
    do {
      more = input.fill(writer, rowsToCut());
      moreBytes = writer.bytes() - bytes;
      cut = call.cutRows() > 0 ? (cut + more) % call.cutRows() : 0;
      filled += more;
      bytes += moreBytes;
      batches += more > 0 ? 1 : 0; // fill() returns 0 if the rows have gone to another writer
    } while (batches < joined
        && more == mostRows // only the last batch of a request may have fewer rows
        && bytes + moreBytes <= Math.min(MOST_TOGETHER, mostBytes / 2)
        && System.nanoTime() - begun < READY_NANOS
        && goesOn());
    input.cut();
    vectors.filled = filled;
    vectors.batches = batches;
  }

  /**
   * Writes a whole group or cogroup. If the group is too large for a request, only counts its rows
   * and bytes, for the text of the error.
   */
  private void fillFrames(Vectors vectors) {
    SidecarClient asked = client.orElseThrow();
    long enough = asked.requestRingBytes() / 2;
    long rows = 0;
    long bytes = 0;
    for (RootWriter writer : vectors.writers) {
      do {
        if (writer.vectorBytes() > enough) {
          bytes += writer.vectorBytes();
          writer.reset(enough);
        }
        writer.limit(enough); // fill() returns at this size, and the loop checks it
        rows += input.fill(writer, Integer.MAX_VALUE);
      } while (input.goesOn());
      bytes += writer.vectorBytes();
    }
    asked.checkSize(rows, bytes);
    vectors.filled = Math.toIntExact(rows);
    vectors.batches = 1;
  }

  private int rowsToCut() {
    return call.cutRows() > 0 ? Math.min(mostRows, call.cutRows() - cut) : mostRows;
  }

  /**
   * Whether Spark refused memory for the last vectors. The task then has only one request under way
   * at a time.
   */
  boolean isMemoryShort() {
    return memoryIsShort;
  }

  private boolean goesOn() {
    long asked = System.nanoTime();
    boolean more = input.hasNext();
    if (System.nanoTime() - asked > READY_NANOS) {
      alone = ALONE;
    }
    return more;
  }

  /** Returns the schema of the first side's batches, as an IPC message. */
  byte[] schema() {
    return sides.get(0).schemaBytes;
  }

  /** Returns a request over the vectors; close it before {@link Vectors#leave} is called. */
  EncodedBatch request(Vectors vectors) {
    Side side = vectors.side;
    List<FieldVector> columns = side.places.stream().map(vectors.root::getVector).toList();
    List<Field> fields = columns.stream().map(FieldVector::getField).toList();
    return new EncodedBatch(
        new VectorSchemaRoot(fields, columns, vectors.rows()), side.schemaBytes, vectors.filled);
  }

  @Override
  public void close() {
    all.forEach(Vectors::close);
    memory.close();
  }

  /** Writes the rows of a task's child into batches. */
  public abstract static class Input {
    /** Makes an input over the partitions of the node's children. */
    public interface Kind<T> extends Serializable {
      Input of(List<Iterator<T>> children, AnswerHandler handler);
    }

    /**
     * Returns an input over a stage, which either gives rows or has generated code that writes the
     * rows into batches itself.
     */
    public static Input ofStage(List<Iterator<InternalRow>> children, AnswerHandler handler) {
      return ofStage(
          children.get(0), () -> handler.keepRows().orElseGet(() -> (OfRows) handler));
    }

    /** Returns an input over a stage whose rows are sent without getting answers. */
    static Input ofStage(Iterator<InternalRow> stage, Supplier<OfRows> sent) {
      Optional<InternalRow> first = stage.hasNext() ? Optional.of(stage.next()) : Optional.empty();
      if (first.isPresent() && first.get() instanceof RowSink sink) {
        return new GeneratedInput(sink, stage);
      }
      RowInput rows = new RowInput(stage, sent.get());
      first.ifPresent(rows::send);
      return rows;
    }

    /** Returns an input over rows, which are taken one by one. */
    public static Input ofRows(List<Iterator<InternalRow>> children, AnswerHandler handler) {
      return new RowInput(children.get(0), (OfRows) handler);
    }

    /** Returns an input over batches of columns. */
    public static Input ofColumns(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
      return ofColumns(children.get(0));
    }

    /** Returns an input over batches of columns that are sent without getting answers. */
    static Input ofColumns(Iterator<ColumnarBatch> batches) {
      return new ColumnInput(batches);
    }

    abstract boolean hasNext();

    /**
     * Sets the writers of an input that already writes rows while {@link #hasNext} runs.
     *
     * @param next supplier of empty writers, called whenever one is needed
     * @param batchRows number of rows of a full batch
     */
    void writeTo(Supplier<RootWriter> next, int batchRows) {}

    /** Ends the batch: all further rows go to another writer. */
    void cut() {}

    /**
     * Appends the next rows, as far as the writer has room; {@link #hasNext} must have returned
     * true.
     *
     * @return number of rows appended
     */
    abstract int fill(RootWriter writer, int mostRows);

    /** Returns the side of the next rows: 0, or 1 for the right side of a cogroup. */
    int side() {
      return 0;
    }

    /** Whether more rows of the same frame follow the rows that the last call of fill() wrote. */
    boolean goesOn() {
      return false;
    }

    /** Whether each call of fill() writes one group, or a part of one. */
    boolean isOfGroups() {
      return false;
    }

    /** Whether a sidecar gets each group, or cogroup, as one batch. */
    boolean isWhole() {
      return false;
    }

    /** Whether a batch has one row, which has a list of rows for each side of a cogroup. */
    boolean isOfLists() {
      return false;
    }
  }

  /** Writes an iterator's rows one by one. */
  static final class RowInput extends Input {
    private final Iterator<InternalRow> rows;
    private final OfRows sent;
    // Projected row that is not written yet, perhaps because the last batch was full; null if none.
    private UnsafeRow next;
    private long rowBytes; // bytes of the last row taken, retained bytes included

    RowInput(Iterator<InternalRow> rows, OfRows sent) {
      this.rows = rows;
      this.sent = sent;
    }

    @Override
    boolean hasNext() {
      return next != null || rows.hasNext();
    }

    private void send(InternalRow row) {
      next = sent.send(row);
      rowBytes = next.getSizeInBytes() + (long) sent.kept();
    }

    @Override
    int fill(RootWriter writer, int mostRows) {
      int written = 0;
      while (written < mostRows && writer.hasRoom(1) && hasNext()) {
        if (next == null) {
          send(rows.next());
        }
        if (!writer.hasRoom(rowBytes)) {
          next = next.copy();
          break;
        }
        writer.write(next, rowBytes);
        next = null;
        written++;
        if (writer.isWhole()) {
          break;
        }
      }
      return written;
    }
  }
}
