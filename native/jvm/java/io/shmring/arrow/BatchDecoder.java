package io.shmring.arrow;

import io.shmring.Kind;
import io.shmring.MappedMessage;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.BlockPool.Block;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.arrow.util.AutoCloseables;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.compression.CompressionCodec;
import org.apache.arrow.vector.dictionary.Dictionary;
import org.apache.arrow.vector.dictionary.DictionaryEncoder;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Makes vectors of some columns of a message. Only the buffers of these columns are copied, or none
 * at all. The vectors need not be closed; see {@link Block}.
 */
public final class BatchDecoder {
  /** A buffer of the batch: its place in the body, and bytes of ones or zeros where it has none. */
  private record Piece(long offset, long length, int filled, int fill) {}

  /** A wanted field, one inside another included: the numbers of its node and of its buffers. */
  private record Part(int node, int buffer, int buffers) {}

  private final RingSchema schema;
  private final boolean dictionaries;
  private final boolean[] wanted;
  private final List<Part> parts = new ArrayList<>();
  private final Schema pruned;
  private final BufferAllocator allocator;
  private final BlockPool pool = new BlockPool();

  BatchDecoder(RingSchema schema, BufferAllocator allocator) {
    this(schema, IntStream.range(0, schema.plain().getFields().size()).toArray(), allocator);
  }

  /**
   * @param columns numbers of the wanted columns, in the schema's order
   * @param allocator for empty vectors, and for the memory that compressed and dictionary-encoded
   *     messages need while they are decoded
   */
  public BatchDecoder(RingSchema schema, int[] columns, BufferAllocator allocator) {
    this.schema = schema;
    this.dictionaries = schema.hasDictionaries();
    this.wanted = new boolean[schema.stored().getFields().size()];
    List<Field> fields = new ArrayList<>();
    for (int column : columns) {
      wanted[column] = true;
      fields.add(schema.plain().getFields().get(column));
    }
    this.pruned = new Schema(fields, schema.plain().getCustomMetadata());
    this.allocator = allocator;
    int[] at = {0, 0};
    List<Field> stored = schema.stored().getFields();
    for (int i = 0; i < wanted.length; i++) {
      number(stored.get(i), wanted[i], at);
    }
  }

  /** Counts nodes and buffers, which lie in the order of a walk through the tree of fields. */
  private void number(Field field, boolean wanted, int[] at) {
    int buffers = TypeLayout.getTypeBufferCount(field.getType());
    if (wanted) {
      parts.add(new Part(at[0], at[1], buffers));
    }
    at[0]++;
    at[1] += buffers;
    for (Field child : field.getChildren()) {
      number(child, wanted, at);
    }
  }

  /**
   * Returns copies of the wanted columns of a message; the lease may be closed afterwards.
   *
   * @throws RingException if the message is not the Arrow data that it should be
   */
  public VectorSchemaRoot copy(Message message) {
    return guarded(message, Optional.empty());
  }

  /**
   * Returns the wanted columns of a message, in place.
   *
   * @param whenUnused runs when the garbage collector finds no vector over the message; until then
   *     the caller keeps the message from being overwritten
   */
  public VectorSchemaRoot map(Message message, Runnable whenUnused) {
    return guarded(message, Optional.of(whenUnused));
  }

  private VectorSchemaRoot guarded(Message message, Optional<Runnable> whenUnused) {
    try {
      return decode(message, whenUnused);
    } catch (RingException error) {
      throw error;
    } catch (Exception error) {
      throw new RingException(
          Status.DAMAGED, "message %d holds no readable Arrow batch of the ring's schema: %s",
          message.id(), error.getMessage());
    }
  }

  private VectorSchemaRoot decode(Message message, Optional<Runnable> whenUnused)
      throws Exception {
    if (message.kind() != Kind.ARROW_BATCH && message.kind() != Kind.ARROW_STREAM) {
      throw new IllegalArgumentException("it is of kind " + message.kind());
    }
    if (message.kind() == Kind.ARROW_BATCH) {
      return decode(message, 0, whenUnused);
    }
    Frame frame = Frame.at(message, 0);
    checkSchema(message, frame);
    return decode(message, frame.end(), whenUnused);
  }

  /**
   * @param offset of the IPC message behind the schema
   */
  VectorSchemaRoot decode(Message message, long offset, Optional<Runnable> whenUnused)
      throws IOException {
    Frame frame = Frame.at(message, offset);
    if (dictionaries || recordBatch(frame).compression() != null) { // it cannot be cut out of the message
      try (GeneralDecoder general = new GeneralDecoder(allocator);
          ArrowRecordBatch batch =
              general.decode(schema.before(message, offset), wanted, pruned)) {
        VectorSchemaRoot root =
            load(batch.getLength(), batch.getNodes(), copied(batch.getBuffers()));
        whenUnused.ifPresent(Runnable::run);
        return root;
      }
    }
    RecordBatch batch = recordBatch(frame);
    List<ArrowFieldNode> nodes = new ArrayList<>();
    List<Piece> pieces = new ArrayList<>();
    select(batch, frame, nodes, pieces);
    int rows = Math.toIntExact(batch.length());
    if (pieces.isEmpty()) { // a block that no buffer lets go of waits for the garbage collector
      whenUnused.ifPresent(Runnable::run);
      return load(rows, nodes, List.of());
    }
    return load(
        rows,
        nodes,
        whenUnused.isPresent()
            ? mapped(message, frame, pieces, whenUnused.get())
            : copied(message, frame, pieces));
  }

  private void checkSchema(Message message, Frame frame) throws Exception {
    byte[] bytes = new byte[Math.toIntExact(Math.min(frame.end(), Integer.MAX_VALUE))];
    message.copyTo(0, ByteBuffer.wrap(bytes));
    if (!Arrays.equals(bytes, schema.bytes()) && !RingSchema.parse(bytes).equals(schema.stored())) {
      throw new IllegalArgumentException(
          "its schema is " + RingSchema.parse(bytes) + ", the ring's is " + schema.stored());
    }
  }

  private static RecordBatch recordBatch(Frame frame) {
    byte type = frame.metadata().headerType();
    if (type != MessageHeader.RecordBatch) {
      throw new IllegalArgumentException("an Arrow message of type " + type);
    }
    return (RecordBatch) frame.metadata().header(new RecordBatch());
  }

  private void select(
      RecordBatch batch, Frame frame, List<ArrowFieldNode> nodes, List<Piece> pieces) {
    for (Part part : parts) {
      FieldNode node = batch.nodes(part.node);
      nodes.add(new ArrowFieldNode(Math.toIntExact(node.length()), node.nullCount()));
      for (int i = 0; i < part.buffers; i++) {
        pieces.add(piece(batch.buffers(part.buffer + i), frame, i == 0 ? node : null));
      }
    }
  }

  /** Makes a validity buffer that was left out, because all values are null or none is. */
  private static Piece piece(org.apache.arrow.flatbuf.Buffer buffer, Frame frame, FieldNode node) {
    long room = frame.end() - frame.body();
    if (buffer.offset() < 0 || buffer.length() < 0 || buffer.offset() > room - buffer.length()) {
      throw new IllegalArgumentException(
          "a buffer of " + buffer.length() + " bytes at " + buffer.offset() + " of " + room);
    }
    boolean made = node != null && buffer.length() == 0 && node.length() > 0;
    return new Piece(
        buffer.offset(),
        buffer.length(),
        made ? Math.toIntExact((node.length() + 7) / 8) : 0,
        node != null && node.nullCount() == 0 ? 0xff : 0);
  }

  private List<ArrowBuf> copied(Message message, Frame frame, List<Piece> pieces) {
    long size = pieces.stream().mapToLong(p -> aligned(p.length + p.filled)).sum();
    ByteBuffer memory = pool.take(Math.toIntExact(size));
    Block block = pool.block(memory, size);
    List<ArrowBuf> buffers = new ArrayList<>(pieces.size());
    int at = 0;
    for (Piece piece : pieces) {
      if (piece.length > 0) {
        message.copyTo(frame.body() + piece.offset, memory.slice(at, (int) piece.length));
      }
      buffers.add(filled(block, at, piece));
      at += (int) aligned(piece.length + piece.filled);
    }
    return buffers;
  }

  private static ArrowBuf filled(Block block, long at, Piece piece) {
    ArrowBuf buffer = block.buffer(at, piece.length + piece.filled);
    if (piece.filled > 0) {
      MemoryUtil.setMemory(buffer.memoryAddress(), piece.filled, (byte) piece.fill);
    }
    return buffer;
  }

  private List<ArrowBuf> mapped(
      Message message, Frame frame, List<Piece> pieces, Runnable whenUnused) {
    MappedMessage memory = message.mapped();
    Block block =
        new Block(
            memory.address(),
            memory.length(),
            () -> {
              whenUnused.run();
              memory.close();
            });
    int made = pieces.stream().mapToInt(Piece::filled).map(n -> (int) aligned(n)).sum();
    Block beside = made == 0 ? block : pool.block(pool.take(made), made);
    List<ArrowBuf> buffers = new ArrayList<>(pieces.size());
    long at = 0;
    for (Piece piece : pieces) {
      buffers.add(
          piece.filled > 0
              ? filled(beside, at, piece)
              : block.buffer(frame.body() + piece.offset, piece.length));
      at += aligned(piece.filled);
    }
    return buffers;
  }

  private List<ArrowBuf> copied(List<ArrowBuf> from) {
    long size = from.stream().mapToLong(b -> aligned(b.readableBytes())).sum();
    ByteBuffer memory = pool.take(Math.toIntExact(size));
    Block block = pool.block(memory, size);
    List<ArrowBuf> buffers = new ArrayList<>(from.size());
    int at = 0;
    for (ArrowBuf buffer : from) {
      int length = (int) buffer.readableBytes();
      buffer.getBytes(0, memory.slice(at, length));
      buffers.add(block.buffer(at, length));
      at += (int) aligned(length);
    }
    return buffers;
  }

  private static long aligned(long length) {
    return (length + 63) & ~63L;
  }

  private VectorSchemaRoot load(int rows, List<ArrowFieldNode> nodes, List<ArrowBuf> buffers) {
    VectorSchemaRoot root = VectorSchemaRoot.create(pruned, allocator);
    try (ArrowRecordBatch batch = new ArrowRecordBatch(rows, nodes, buffers)) {
      new VectorLoader(root).load(batch);
    }
    for (FieldVector vector : root.getFieldVectors()) {
      BatchCheck.check(vector, rows);
    }
    return root;
  }

  /** Decodes batches that cannot be cut out of a message: compressed or dictionary-encoded ones. */
  private static final class GeneralDecoder implements AutoCloseable {
    private final BufferAllocator allocator;
    private final List<AutoCloseable> opened = new ArrayList<>();

    GeneralDecoder(BufferAllocator parent) {
      this.allocator = parent.newChildAllocator("shmring", 0, Long.MAX_VALUE);
      opened.add(allocator);
    }

    /** The wanted columns with their values in place; the caller closes the batch, then this. */
    ArrowRecordBatch decode(InputStream stream, boolean[] wanted, Schema pruned) throws IOException {
      ArrowStreamReader reader =
          new ArrowStreamReader(stream, allocator, CompressionCodec.Factory.INSTANCE);
      opened.add(reader);
      if (!reader.loadNextBatch()) {
        throw new IllegalArgumentException("there is no batch in it");
      }
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      List<FieldVector> vectors = new ArrayList<>();
      for (int i = 0; i < wanted.length; i++) {
        if (wanted[i]) {
          vectors.add(resolved(root.getVector(i), reader));
        }
      }
      VectorSchemaRoot columns = new VectorSchemaRoot(pruned, vectors, root.getRowCount());
      return new VectorUnloader(columns).getRecordBatch();
    }

    private FieldVector resolved(FieldVector vector, ArrowStreamReader reader) throws IOException {
      BatchCheck.check(vector, vector.getValueCount());
      if (vector.getField().getDictionary() == null) {
        rejectNested(vector);
        return vector;
      }
      Dictionary dictionary = reader.lookup(vector.getField().getDictionary().getId());
      BatchCheck.check(dictionary.getVector(), dictionary.getVector().getValueCount());
      FieldVector values =
          (FieldVector) DictionaryEncoder.decode(vector, dictionary, allocator);
      opened.add(values);
      return values;
    }

    private static void rejectNested(FieldVector vector) {
      for (FieldVector child : vector.getChildrenFromFields()) {
        if (child.getField().getDictionary() != null) {
          throw new IllegalArgumentException(
              "column \"" + vector.getName() + "\" has a dictionary inside, which Java cannot read");
        }
        rejectNested(child);
      }
    }

    @Override
    public void close() {
      Collections.reverse(opened);
      AutoCloseables.closeNoChecked(AutoCloseables.all(opened));
    }
  }

  /**
   * One encapsulated IPC message inside a ring's message: length, metadata, body. Its numbers come
   * from another process and have been checked against the message.
   *
   * @param metadata the flatbuffer, copied out
   * @param body where the body begins in the ring's message
   * @param end where it ends
   */
  record Frame(org.apache.arrow.flatbuf.Message metadata, long body, long end) {
    private static final int CONTINUATION = -1;

    static Frame at(Message message, long offset) {
      ByteBuffer prefix = little(8);
      message.copyTo(offset, prefix);
      int length = prefix.getInt(4);
      if (prefix.getInt(0) != CONTINUATION || length <= 0 || length > message.length()) {
        throw new IllegalArgumentException("no Arrow message at byte " + offset);
      }
      ByteBuffer bytes = little(length);
      message.copyTo(offset + 8, bytes);
      bytes.rewind();
      org.apache.arrow.flatbuf.Message metadata =
          org.apache.arrow.flatbuf.Message.getRootAsMessage(bytes);
      long body = offset + 8 + length;
      if (metadata.bodyLength() < 0 || metadata.bodyLength() > message.length() - body) {
        throw new IllegalArgumentException(
            "an Arrow body of " + metadata.bodyLength() + " bytes at byte " + body);
      }
      return new Frame(metadata, body, body + metadata.bodyLength());
    }

    private static ByteBuffer little(int size) {
      return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }
  }
}
