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
 * A task's rows on their way to the ring: an {@link Input} writes them into vectors, and batches of
 * these become requests. A batch, or several one behind the other, keeps its vectors until its request
 * is answered, as the sidecar may have to be asked again; then the next one is written into the same
 * memory.
 */
public final class Batches implements AutoCloseable {
  // A limit that no batch reaches; twice that is a number, too.
  private static final long UNLIMITED = Long.MAX_VALUE / 2;

  // Beyond that many bytes a request's own cost hardly counts.
  private static final long MOST_TOGETHER = 1 << 20;

  // A batch that is ready waits no longer for others than this, save for the one under way.
  private static final long READY_NANOS = 1_000_000;

  // Groups are joined to a request until it has so many bytes or rows, or has taken so long.
  private static final long JOINED_BYTES = 1 << 19;
  private static final int JOINED_ROWS = 10_000;
  private static final long JOINED_NANOS = 50_000_000;

  // Requests that are of one batch after the child has made such a batch wait.
  private static final int ALONE = 16;

  // Parts of a task's memory that vectors may take where rows can wait in Spark's queue instead: a page is
  // a sixteenth of what tasks have together. Vectors cannot be spilled, and other operators need pages, too.
  private static final int PAGES = 4;
  private static final int PAGES_OF_BATCH = 2;

  // Rows that are taken out of vectors at a time.
  private static final int FEW_ROWS = 1024;
  private static final long FEW_BYTES = 1 << 16;

  /** Of a cogroup, or of what is none. */
  private final class Side {
    private final Signature.Side side;
    private final Schema written;
    private final List<Integer> places; // of the columns that go
    private final byte[] schemaBytes; // of these
    private final ArrayDeque<Vectors> free = new ArrayDeque<>();
    private Optional<Vectors> last = Optional.empty(); // that were made
    private long pieceBytes = UNLIMITED; // of rows that are taken out of its vectors again
    private boolean isOver; // its vectors are not used again

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

    /** Gives back the memory of vectors that nothing is in. */
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
    private final List<RootWriter> writers; // of both sides of a cogroup, or one
    private VectorSchemaRoot part; // the root itself if it is all
    private int filled; // with so many of the input's rows
    private int batches; // batches of the function's that these are
    private final List<Integer> groups = new ArrayList<>(); // rows of each, for a Python worker
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

    /** Which side of a cogroup they are of: 0, or 1. */
    int side() {
      return sides.indexOf(side);
    }

    /** Returns the rows of each group; none if the request is not of groups for a Python worker. */
    int[] groups() {
      return groups.stream().mapToInt(Integer::intValue).toArray();
    }

    /** Whether more rows of the last group follow. */
    boolean goesOn() {
      return goesOn;
    }

    /** Of all columns. */
    long bytes() {
      return root.getFieldVectors().stream().mapToLong(FieldVector::getBufferSize).sum();
    }

    /** Some of the rows, until others are asked for, or the vectors are given back. */
    VectorSchemaRoot part(int first, int count) {
      leavePart();
      part = root.slice(first, count);
      return part;
    }

    /** To be called once: the request needs them no longer. */
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
  private Side generated; // which the input writes by itself
  private long mostBytes;
  private final List<Vectors> all = new ArrayList<>();
  private final ArrayDeque<Vectors> ahead = new ArrayDeque<>(); // which the input writes already
  private final ArrayDeque<Vectors> written = new ArrayDeque<>(); // filled, and next to be sent
  private boolean apart; // each group is a request
  private int groupsWanted = 1; // groups of the next request: few at first, for a slow function
  private int alone; // requests that still go so
  private int cut; // rows since one ended by their number, where batches end there in any case
  private boolean memoryIsShort;
  private Optional<SidecarClient> client = Optional.empty();

  /**
   * @param call whose the batches are
   * @param settings of the task
   * @param handler of the answers, which keeps rows where vectors would take too much memory
   * @param met runs before generated code fills several batches, as where a row of a join has many
   *     partners, and may {@link #begin}
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
    if (!ofRows.isEmpty() && input instanceof RowInput) { // its stage gives rows, which wait already
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

  /** Whether rows can wait instead of the columns that are written. */
  private boolean mayKeepRows() {
    return !ofRows.isEmpty() && !(input instanceof RowInput);
  }

  private void beginRows() {
    sides = List.of(new Side(ofRows.get(0), types));
    metrics.add("rowTasks", 1);
  }

  /**
   * Says who sends the batches, before the first one is asked for.
   *
   * @param bytes of a batch's rows with what is kept of them, unless one row alone has more
   */
  void begin(SidecarClient client, long bytes) {
    this.client = Optional.of(client);
    mostBytes = Math.min(mostBytes, bytes);
  }

  boolean hasNext() {
    return !written.isEmpty() || input.hasNext();
  }

  /** Bytes of a request of several groups; 0 if groups are not joined. */
  long joinedBytes() {
    return call.joinsGroups() ? JOINED_BYTES : 0;
  }

  /** Lets each batch be of one group: a socket's streams are. The first one is in any case. */
  void keepGroupsApart() {
    apart = true;
    groupsWanted = 1;
  }

  /** Rows that the function gets at a time; 0: all of a request. */
  int rowsAtATime() {
    return input.isOfGroups() ? 0 : mostRows;
  }

  /**
   * The next batches, written; {@link #hasNext} must say that there are some. They are as many as the
   * child gives without delay.
   *
   * @param most where they may be joined at all
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

  /** Writes the next groups, or cogroups; of a group that is larger than a batch, the next batch. */
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

  /** Whether the task may have the memory of all vectors, perhaps without those that are free. */
  private boolean holdsAll() {
    long most = mayKeepRows() ? PAGES * memory.pageBytes() : UNLIMITED;
    if (memory.holds(allocator.getAllocatedMemory(), most)) {
      return true;
    }
    sides.forEach(Side::closeFree);
    return memory.holds(allocator.getAllocatedMemory(), most);
  }

  /** Whether a batch that must have the rows of Spark's own has fewer, as these take too many bytes. */
  private boolean isCutShort(Vectors vectors) {
    return client.isEmpty()
        && vectors.filled < mostRows
        && !vectors.writer().isWhole()
        && input.hasNext();
  }

  /** Lets rows wait in Spark's queue from now on: those that were written, and all that follow. */
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

  /** Rows out of vectors: those that are there, and those that the input writes then, a few at a time. */
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
      batches += more > 0 ? 1 : 0; // none where the rest has gone to another writer
    } while (batches < joined
        && more == mostRows // all but the last are whole
        && bytes + moreBytes <= Math.min(MOST_TOGETHER, mostBytes / 2)
        && System.nanoTime() - begun < READY_NANOS
        && goesOn());
    input.cut();
    vectors.filled = filled;
    vectors.batches = batches;
  }

  /** Writes a whole group, or cogroup. One that no request takes is counted, and not held. */
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
        writer.limit(enough); // until the next look
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

  /** Whether Spark gives the task no memory for the last one, which goes all the same, but alone. */
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

  /** The schema of the first side's batches, as an IPC message. */
  byte[] schema() {
    return sides.get(0).schemaBytes;
  }

  /** The request, which is closed before the vectors are {@linkplain Vectors#leave left}. */
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

  /** What a task's child gives, cut into batches. */
  public abstract static class Input {
    /** Makes it of what the partitions of the node's children hold. */
    public interface Kind<T> extends Serializable {
      Input of(List<Iterator<T>> children, AnswerHandler handler);
    }

    /** Rows of a stage that writes them itself where its code is generated, and else gives them. */
    public static Input ofStage(List<Iterator<InternalRow>> children, AnswerHandler handler) {
      return ofStage(
          children.get(0), () -> handler.keepRows().orElseGet(() -> (OfRows) handler));
    }

    /** The same for rows that bring no answers. */
    static Input ofStage(Iterator<InternalRow> stage, Supplier<OfRows> sent) {
      Optional<InternalRow> first = stage.hasNext() ? Optional.of(stage.next()) : Optional.empty();
      if (first.isPresent() && first.get() instanceof RowSink sink) {
        return new GeneratedInput(sink, stage);
      }
      RowInput rows = new RowInput(stage, sent.get());
      first.ifPresent(rows::send);
      return rows;
    }

    /** Rows, one by one. */
    public static Input ofRows(List<Iterator<InternalRow>> children, AnswerHandler handler) {
      return new RowInput(children.get(0), (OfRows) handler);
    }

    /** Batches of columns. */
    public static Input ofColumns(List<Iterator<ColumnarBatch>> children, AnswerHandler handler) {
      return ofColumns(children.get(0));
    }

    /** The same for columns that bring no answers. */
    static Input ofColumns(Iterator<ColumnarBatch> batches) {
      return new ColumnInput(batches);
    }

    abstract boolean hasNext();

    /**
     * For an input that writes rows already when it is asked whether it has some.
     *
     * @param next gives an empty writer whenever one is needed
     * @param batchRows of a batch that is whole
     */
    void writeTo(Supplier<RootWriter> next, int batchRows) {}

    /** The batch is made of what was written: what follows goes to another writer. */
    void cut() {}

    /**
     * Writes the next rows behind what was written, as far as the writer has room; {@link #hasNext} must
     * say that there are some.
     *
     * @return how many there were
     */
    abstract int fill(RootWriter writer, int mostRows);

    /** Which of a cogroup's sides the next rows are of: 0, or 1. */
    int side() {
      return 0;
    }

    /** Whether more of the same frame follow what the last call wrote. */
    boolean goesOn() {
      return false;
    }

    /** Whether each call writes one group, or a part of one. */
    boolean isOfGroups() {
      return false;
    }

    /** Whether a sidecar gets each group, or cogroup, as one batch. */
    boolean isWhole() {
      return false;
    }

    /** Whether this batch has one row: a list of rows for each side of a cogroup. */
    boolean isOfLists() {
      return false;
    }
  }

  /** Rows, one by one. */
  static final class RowInput extends Input {
    private final Iterator<InternalRow> rows;
    private final OfRows sent;
    private UnsafeRow next; // what goes of a row that was taken and did not fit the batch before
    private long rowBytes; // of the last row that was taken

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
