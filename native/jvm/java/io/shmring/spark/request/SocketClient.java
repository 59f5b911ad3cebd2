package io.shmring.spark.request;

import io.shmring.arrow.BatchCheck;
import io.shmring.arrow.EncodedBatch;
import io.shmring.exchange.Client;
import io.shmring.spark.request.Call.PythonCall;
import io.shmring.spark.request.FunctionKind.Trait;
import java.io.ByteArrayInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.ObjLongConsumer;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.NullVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.WriteChannel;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.IpcOption;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Sends batches to a Python worker over its socket, as Spark's own runners do, if no rings can be
 * made. While the task waits for an answer, Spark's runner asks for the next batch each time the
 * worker can take more data.
 */
final class SocketClient implements Client {
  private final PythonCall call;
  private final PythonRun run;
  private final byte[] schema; // schema to send if the task has no batches
  private final BooleanSupplier sendsNext;
  private final ObjLongConsumer<String> counts;
  private final BufferAllocator allocator;
  private final Consumer<Schema> check;
  private final ArrayDeque<Rows> unsent = new ArrayDeque<>();
  private final ArrayDeque<Rows> unanswered = new ArrayDeque<>(); // the oldest request first
  private Optional<ArrowStreamReader> answers = Optional.empty();
  private boolean isOpen; // whether a stream is being written
  private boolean isAnswered; // whether the oldest request was answered
  private boolean over;

  /**
   * @param schema schema of the first side's batches, as an IPC message
   * @param sendsNext callback that calls {@link #send} with the task's next batch, or returns false
   *     if there is none
   * @param check callback that raises an error if the task cannot take answers with the given
   *     schema
   */
  SocketClient(
      PythonCall call,
      PythonRun run,
      byte[] schema,
      BooleanSupplier sendsNext,
      ObjLongConsumer<String> counts,
      BufferAllocator allocator,
      Consumer<Schema> check) {
    this.call = call;
    this.run = run;
    this.schema = schema;
    this.sendsNext = sendsNext;
    this.counts = counts;
    this.allocator = allocator;
    this.check = check;
    run.writeBatchesWith(this::write);
  }

  // --- requests -------------------------------------------------------------------------------

  @Override
  public void send(Rows rows) {
    unsent.add(rows);
    counts.accept("requests", 1);
    counts.accept("requestBytes", rows.batch().length());
  }

  /**
   * Returns false, so that the caller sends no batch ahead: Spark asks for each batch when the
   * worker can take it.
   */
  @Override
  public boolean wantsMore(int most) {
    return false;
  }

  @Override
  public int underWay() {
    return unsent.size() + unanswered.size();
  }

  @Override
  public boolean isAnswered() {
    return false;
  }

  /** Writes the next batch; if there is none, writes the end and returns false. */
  private boolean write(DataOutputStream out) {
    try {
      WriteChannel channel = new WriteChannel(Channels.newChannel(out));
      if (unsent.isEmpty() && !sendsNext.getAsBoolean()) {
        end(out, channel);
        return false;
      }
      Rows rows = unsent.remove();
      write(rows, out, channel);
      if (call.kind().has(Trait.ANSWERS_EACH_BATCH)) {
        unanswered.add(rows);
      } else {
        rows.close();
      }
      return true;
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private void write(Rows rows, DataOutputStream out, WriteChannel channel)
      throws IOException {
    if (!isOpen) {
      if (call.kind().isGrouped() && rows.side() == 0) {
        out.writeInt(call.kind().isOfCogroups() ? 2 : 1);
      }
      begin(rows.batch().schema(), channel);
    }
    try (ArrowRecordBatch batch = batchOf(rows.batch().columns())) {
      MessageSerializer.serialize(channel, batch);
    }
    if (call.kind().isGrouped() && !rows.goesOn()) {
      ArrowStreamWriter.writeEndOfStream(channel, IpcOption.DEFAULT);
      isOpen = false;
    }
  }

  private void end(DataOutputStream out, WriteChannel channel) throws IOException {
    if (call.kind().isGrouped()) {
      out.writeInt(0);
      return;
    }
    if (!isOpen) {
      begin(schema, channel);
    }
    ArrowStreamWriter.writeEndOfStream(channel, IpcOption.DEFAULT);
  }

  private void begin(byte[] message, WriteChannel channel) throws IOException {
    Schema sent =
        MessageSerializer.deserializeSchema(
            new ReadChannel(Channels.newChannel(new ByteArrayInputStream(message))));
    FieldType struct = FieldType.nullable(ArrowType.Struct.INSTANCE);
    MessageSerializer.serialize(
        channel,
        call.isStruct()
            ? new Schema(List.of(new Field("struct", struct, sent.getFields())))
            : sent);
    isOpen = true;
  }

  /** Returns a record batch of the columns, or of one struct that has the columns as its fields. */
  private ArrowRecordBatch batchOf(VectorSchemaRoot columns) {
    ArrowRecordBatch batch = EncodedBatch.batchOf(columns);
    if (!call.isStruct()) {
      return batch;
    }
    try (batch) {
      List<ArrowFieldNode> nodes = new ArrayList<>(batch.getNodes());
      nodes.add(0, new ArrowFieldNode(batch.getLength(), 0));
      List<ArrowBuf> buffers = new ArrayList<>(batch.getBuffers());
      buffers.add(0, allocator.getEmpty()); // no validity bitmap, because no struct is null
      return new ArrowRecordBatch(
          batch.getLength(),
          nodes,
          buffers,
          batch.getBodyCompression(),
          batch.getVariadicBufferCounts(),
          true);
    }
  }

  // --- answers --------------------------------------------------------------------------------

  @Override
  public Optional<Answer> next() {
    if (isAnswered) {
      isAnswered = false;
      unanswered.remove().close();
      return Optional.empty();
    }
    long begun = System.nanoTime();
    Optional<VectorSchemaRoot> batch = Optional.empty();
    while (!over && batch.isEmpty()) {
      batch = read();
    }
    counts.accept("answerTime", System.nanoTime() - begun);
    isAnswered = batch.isPresent() && call.kind().has(Trait.ANSWERS_EACH_BATCH);
    // The answer lies in the memory of the stream's reader until the reader reads the next one.
    return batch.map(columns -> new Answer(columns, () -> {}));
  }

  private Optional<VectorSchemaRoot> read() {
    try {
      if (answers.isEmpty() && run.hasStarted()) {
        answers = Optional.of(new ArrowStreamReader(run.socket(), allocator));
      }
      if (answers.isPresent() && answers.get().loadNextBatch()) {
        counts.accept("answers", 1);
        counts.accept("answerBytes", answers.get().bytesRead());
        return columns(answers.get().getVectorSchemaRoot());
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    over = true;
    run.end();
    return Optional.empty();
  }

  /**
   * Returns the answer's columns. Returns empty if the answer has neither columns nor rows: the
   * worker then sends a column of type null, not a struct.
   */
  private Optional<VectorSchemaRoot> columns(VectorSchemaRoot batch) {
    VectorSchemaRoot columns = batch;
    if (call.kind().givesStruct()) {
      if (batch.getVector(0) instanceof NullVector) {
        return Optional.empty();
      }
      StructVector struct = (StructVector) batch.getVector(0);
      columns =
          new VectorSchemaRoot(
              struct.getField().getChildren(),
              struct.getChildrenFromFields(),
              batch.getRowCount());
    }
    check.accept(columns.getSchema());
    for (FieldVector vector : columns.getFieldVectors()) {
      BatchCheck.check(vector, columns.getRowCount());
    }
    return Optional.of(columns);
  }

  @Override
  public boolean isOver() {
    return over && !isAnswered;
  }

  @Override
  public void close() {
    unsent.forEach(Rows::close);
    unsent.clear();
    unanswered.forEach(Rows::close);
    unanswered.clear();
    try {
      if (answers.isPresent()) {
        answers.get().close(false); // false: leave Spark's socket open
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
