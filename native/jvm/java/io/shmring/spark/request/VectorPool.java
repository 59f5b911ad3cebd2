package io.shmring.spark.request;

import io.shmring.spark.columns.SparkTypes;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** Keeps the vectors of one side's batches, and uses them again for later batches. */
final class VectorPool implements AutoCloseable {
  /** A limit of bytes that no batch reaches; twice this limit does not overflow a long. */
  static final long UNLIMITED = Long.MAX_VALUE / 2;

  /**
   * The form of a batch.
   *
   * @param wholeBytes bytes of the sent columns at which Spark would end its own batch
   * @param isStruct whether Spark's own batch would have one struct column with the sent columns
   * @param isOfLists whether a batch has one row, which has a list of rows for each side
   */
  record Form(long wholeBytes, boolean isStruct, boolean isOfLists) {
    static final Form PLAIN = new Form(Long.MAX_VALUE, false, false);
  }

  final int side; // number of the side: 0, or 1 for the right side of a cogroup
  final Form form;
  final List<Integer> places; // places of the sent columns among the written ones
  final byte[] schemaBytes; // schema of the sent columns, as an IPC message
  private final Schema written;
  private final BufferAllocator allocator;
  private final List<Vectors> all = new ArrayList<>();
  private final ArrayDeque<Vectors> free = new ArrayDeque<>();
  private Optional<Vectors> last = Optional.empty(); // the vectors made last
  private boolean isOver; // whether vectors given back are freed, not reused

  /** Makes a pool of vectors whose columns are all sent. */
  VectorPool(Schema schema, byte[] schemaBytes, BufferAllocator allocator) {
    this(
        0,
        schema,
        IntStream.range(0, schema.getFields().size()).boxed().toList(),
        schemaBytes,
        Form.PLAIN,
        allocator);
  }

  VectorPool(
      int number, Signature.Side side, SparkTypes types, Form form, BufferAllocator allocator) {
    this(
        number,
        types.schema(side.written()),
        side.places(),
        new Schema(types.schema(side.sent()).getFields(), side.metadata()).serializeAsMessage(),
        form,
        allocator);
  }

  private VectorPool(
      int side,
      Schema written,
      List<Integer> places,
      byte[] schemaBytes,
      Form form,
      BufferAllocator allocator) {
    this.side = side;
    this.written = written;
    this.places = places;
    this.schemaBytes = schemaBytes;
    this.form = form;
    this.allocator = allocator;
  }

  /**
   * Returns empty vectors.
   *
   * @param mostBytes maximum bytes of the rows that are written into them
   */
  Vectors take(long mostBytes) {
    Vectors vectors = free.isEmpty() ? made() : free.pop();
    vectors.reset(mostBytes);
    return vectors;
  }

  private Vectors made() {
    Vectors vectors = new Vectors(this, VectorSchemaRoot.create(written, allocator), last);
    last = Optional.of(vectors);
    all.add(vectors);
    return vectors;
  }

  void giveBack(Vectors vectors) {
    free.push(vectors);
    if (isOver) {
      closeFree();
    }
  }

  /** Gives back the memory of the empty vectors. */
  void closeFree() {
    free.forEach(Vectors::close);
    all.removeAll(free);
    free.clear();
  }

  /** Frees the empty vectors, and the others as soon as they are given back. */
  void end() {
    isOver = true;
    closeFree();
  }

  /** Returns the number of vectors, whether they are empty or not. */
  int size() {
    return all.size();
  }

  @Override
  public void close() {
    all.forEach(Vectors::close);
  }
}
