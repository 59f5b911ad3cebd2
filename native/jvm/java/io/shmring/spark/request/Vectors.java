package io.shmring.spark.request;

import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client;
import io.shmring.spark.columns.RootWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.types.pojo.Field;

/** Vectors of one request: the rows of a batch, or of several consecutive ones. */
final class Vectors {
  private final VectorPool pool;
  private final VectorSchemaRoot root;
  private final List<RootWriter> writers; // one writer, or one for each list of a cogroup
  private VectorSchemaRoot part; // slice that part() returned last; `root` if there is no slice
  private int inputRows; // number of the input's rows in the vectors
  private int batches; // number of the function's batches in the vectors
  // Number of rows of each group, in a request to a Python worker; else empty.
  private final List<Integer> groups = new ArrayList<>();
  private boolean goesOn; // whether more rows of the last group follow

  Vectors(VectorPool pool, VectorSchemaRoot root, Optional<Vectors> like) {
    this.pool = pool;
    this.root = root;
    this.part = root;
    VectorPool.Form form = pool.form;
    this.writers =
        form.isOfLists()
            ? IntStream.range(0, root.getFieldVectors().size())
                .mapToObj(i -> ofList(i, like))
                .toList()
            : List.of(
                new RootWriter(
                    root,
                    pool.places,
                    form.wholeBytes(),
                    form.isStruct(),
                    like.map(Vectors::writer)));
  }

  private RootWriter ofList(int place, Optional<Vectors> like) {
    return new RootWriter(
        (ListVector) root.getVector(place), like.map(other -> other.writers.get(place)));
  }

  /**
   * Empties the vectors.
   *
   * @param mostBytes maximum bytes of the rows that are written next
   */
  void reset(long mostBytes) {
    writers.forEach(writer -> writer.reset(mostBytes));
    groups.clear();
    filled(0, 0);
  }

  RootWriter writer() {
    return writers.get(0);
  }

  /** Returns the writers of the sides of a cogroup, or the only writer. */
  List<RootWriter> writers() {
    return writers;
  }

  /** Notes what was written since the vectors were empty. */
  void filled(int inputRows, int batches) {
    this.inputRows = inputRows;
    this.batches = batches;
  }

  /**
   * Notes that a group, or a part of a group, was written.
   *
   * @param goesOn whether more rows of the group follow
   */
  void addGroup(int rows, boolean goesOn) {
    groups.add(rows);
    filled(inputRows + rows, groups.size());
    this.goesOn = goesOn;
  }

  void finish() {
    writers.forEach(RootWriter::finish);
    if (pool.form.isOfLists()) {
      root.setRowCount(1);
    }
  }

  VectorSchemaRoot root() {
    return root;
  }

  int rows() {
    return root.getRowCount();
  }

  int inputRows() {
    return inputRows;
  }

  int batches() {
    return batches;
  }

  /** Returns the number of rows of each group; none unless a Python worker gets groups. */
  int[] groups() {
    return groups.stream().mapToInt(Integer::intValue).toArray();
  }

  long bytes() {
    return root.getFieldVectors().stream().mapToLong(FieldVector::getBufferSize).sum();
  }

  /**
   * Returns the rows as a client sends them. The vectors are given back when nobody needs the rows
   * any longer.
   *
   * @param atATime number of rows that the function gets as one batch; 0 for all rows
   */
  Client.Rows request(int atATime) {
    List<FieldVector> columns = pool.places.stream().map(root::getVector).toList();
    List<Field> fields = columns.stream().map(FieldVector::getField).toList();
    VectorSchemaRoot sent = new VectorSchemaRoot(fields, columns, rows());
    EncodedBatch batch = new EncodedBatch(sent, pool.schemaBytes, inputRows);
    return new Client.Rows(batch, atATime, pool.side, groups(), goesOn, this::leave);
  }

  /** Returns a slice of the rows, valid until the next call, or until the vectors are reused. */
  VectorSchemaRoot part(int first, int count) {
    leavePart();
    part = root.slice(first, count);
    return part;
  }

  /** Gives the vectors back for reuse. Call it once for each request, after the answer. */
  void leave() {
    leavePart();
    pool.giveBack(this);
  }

  private void leavePart() {
    if (part != root) {
      part.close();
      part = root;
    }
  }

  void close() {
    leavePart();
    root.close();
  }
}
