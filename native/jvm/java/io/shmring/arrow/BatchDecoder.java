package io.shmring.arrow;

import io.shmring.Kind;
import io.shmring.MappedMessage;
import io.shmring.Message;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.BatchShape.Part;
import io.shmring.arrow.BatchShape.Piece;
import io.shmring.arrow.BlockPool.Block;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;
import org.apache.arrow.flatbuf.DictionaryBatch;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.arrow.memory.util.MemoryUtil;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.dictionary.Dictionary;
import org.apache.arrow.vector.dictionary.DictionaryEncoder;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Makes vectors of the wanted columns of a message. Only the buffers of these columns are copied,
 * or none when a message is mapped. The vectors need not be closed; see {@link Block}.
 */
public final class BatchDecoder {
  private final RingSchema schema;
  private final boolean[] wanted;
  private final List<Part> parts;
  // Schema of the wanted columns as messages have them: a column with a dictionary has numbers
  // instead of values.
  private final Schema coded;
  private final Schema pruned;
  private final BufferAllocator allocator;
  private final BlockPool pool = new BlockPool();

  BatchDecoder(RingSchema schema, BufferAllocator allocator) {
    this(schema, IntStream.range(0, schema.plain().getFields().size()).toArray(), allocator);
  }

  /**
   * @param columns numbers of the wanted columns, in the schema's order
   * @param allocator the allocator for empty vectors
   */
  public BatchDecoder(RingSchema schema, int[] columns, BufferAllocator allocator) {
    this.schema = schema;
    List<Field> stored = schema.stored().getFields();
    this.wanted = new boolean[stored.size()];
    this.parts = stored.stream().map(Part::of).toList();
    List<Field> fields = new ArrayList<>();
    List<Field> coded = new ArrayList<>();
    for (int column : columns) {
      coded.add(parts.get(column).field());
      wanted[column] = true;
      fields.add(schema.plain().getFields().get(column));
    }
    this.pruned = new Schema(fields, schema.plain().getCustomMetadata());
    this.coded = new Schema(coded);
    this.allocator = allocator;
  }

  /**
   * Returns copies of the wanted columns of a message. The lease may be closed afterwards.
   *
   * @throws RingException if the message is no Arrow data of the ring's schema
   */
  public VectorSchemaRoot copy(Message message) {
    return guarded(message, Optional.empty());
  }

  /**
   * Returns the wanted columns of a message, in place.
   *
   * @param whenUnused an action that runs when no vector uses the message any more (see
   *     {@link Block}); until then the caller keeps the message from being overwritten
   */
  public VectorSchemaRoot map(Message message, Runnable whenUnused) {
    return guarded(message, Optional.of(whenUnused));
  }

  private VectorSchemaRoot guarded(Message message, Optional<Runnable> whenUnused) {
    return readable(
        "message " + message.id(), " of the ring's schema", () -> decode(message, whenUnused));
  }

  /**
   * Runs a decoding, and turns its failure into the ring's error, because a damaged message must
   * not end the process.
   *
   * @param what name of the message or answer, for errors
   * @param schema name of its schema with a space before it, for errors; may be empty
   */
  static <T> T readable(String what, String schema, Callable<T> decoding) {
    try {
      return decoding.call();
    } catch (RingException error) {
      throw error;
    } catch (OutOfMemoryError error) {
      throw new RingException(
          Status.NO_MEMORY,
          "%s: the JVM has no memory for its Arrow batch: %s", what, error.getMessage());
    } catch (Exception | StackOverflowError | AssertionError error) {
      throw new RingException(
          Status.DAMAGED,
          "%s holds no readable Arrow batch%s: %s",
          what, schema, error.getMessage() == null ? error : error.getMessage());
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
   * @param offset offset of the IPC message after the schema
   */
  VectorSchemaRoot decode(Message message, long offset, Optional<Runnable> whenUnused)
      throws IOException {
    Frame frame = Frame.at(message, offset);
    if (schema.hasDictionaries() || frame.batch().compression() != null) {
      VectorSchemaRoot root = unpacked(message, frame);
      whenUnused.ifPresent(Runnable::run);
      return root;
    }
    Body body = new Body(message, frame);
    BatchShape shape = new BatchShape(parts, wanted, body);
    // A block runs whenUnused when its last buffer is closed. A block without buffers would run it
    // only after a garbage collection, so columns without buffers are not mapped.
    if (whenUnused.isEmpty() || shape.pieces.isEmpty()) {
      VectorSchemaRoot root = load(pruned, shape.batch(copied(body, shape.pieces)), allocator);
      whenUnused.ifPresent(Runnable::run);
      return root;
    }
    AtomicBoolean loaded = new AtomicBoolean();
    // Does nothing if load() has failed, because the caller then releases the message.
    Runnable ifLoaded =
        () -> {
          if (loaded.get()) {
            whenUnused.get().run();
          }
        };
    List<ArrowBuf> buffers = mapped(message, body, shape.pieces, ifLoaded);
    VectorSchemaRoot root = load(pruned, shape.batch(buffers), allocator);
    loaded.set(true);
    return root;
  }

  /**
   * Decodes a batch that is compressed, or has dictionaries before it. Replaces numbers by the
   * dictionaries' values.
   */
  private VectorSchemaRoot unpacked(Message message, Frame first) {
    try (Arena arena = new Arena(message.length())) {
      Map<Long, Dictionary> dictionaries = new HashMap<>();
      Frame frame = first;
      for (; frame.isDictionary(); frame = Frame.at(message, frame.end())) {
        Optional<Field> field = encoded(frame.dictionary().id());
        if (field.isPresent()) {
          Field values = plain(field.get());
          VectorSchemaRoot root =
              unpacked(
                  new Schema(List.of(values)),
                  List.of(Part.of(values)),
                  new boolean[] {true},
                  new Body(message, frame),
                  arena);
          dictionaries.put(
              frame.dictionary().id(),
              new Dictionary(root.getVector(0), field.get().getDictionary()));
        }
      }
      VectorSchemaRoot numbers = unpacked(coded, parts, wanted, new Body(message, frame), arena);
      return resolved(numbers, dictionaries, arena);
    } catch (OutOfMemoryException error) {
      throw Arena.full(message.length(), error);
    }
  }

  /** Decompresses the wanted columns of a batch, or copies them, into vectors of the arena. */
  private static VectorSchemaRoot unpacked(
      Schema fields, List<Part> parts, boolean[] wanted, Body body, Arena arena) {
    BatchShape shape = new BatchShape(parts, wanted, body);
    List<ArrowBuf> buffers = new ArrayList<>(shape.pieces.size());
    for (Piece piece : shape.pieces) {
      buffers.add(filled(arena.allocator.buffer(piece.size()), piece, body));
    }
    return load(fields, shape.batch(buffers), arena.allocator);
  }

  private VectorSchemaRoot resolved(
      VectorSchemaRoot numbers, Map<Long, Dictionary> dictionaries, Arena arena) {
    List<FieldVector> vectors = new ArrayList<>();
    for (int i = 0, column = 0; i < wanted.length; i++) {
      if (wanted[i]) {
        Field field = schema.stored().getFields().get(i);
        vectors.add(resolved(field, numbers.getVector(column++), dictionaries, arena));
      }
    }
    VectorSchemaRoot columns = new VectorSchemaRoot(pruned, vectors, numbers.getRowCount());
    try (ArrowRecordBatch batch = new VectorUnloader(columns).getRecordBatch()) {
      ArrowRecordBatch copy =
          new ArrowRecordBatch(
              batch.getLength(),
              batch.getNodes(),
              copied(batch.getBuffers()),
              batch.getBodyCompression(),
              batch.getVariadicBufferCounts(),
              true);
      return load(pruned, copy, allocator);
    }
  }

  private static FieldVector resolved(
      Field field, FieldVector numbers, Map<Long, Dictionary> dictionaries, Arena arena) {
    if (field.getDictionary() == null) {
      rejectNested(field, field.getChildren());
      return numbers;
    }
    Dictionary dictionary = dictionaries.get(field.getDictionary().getId());
    if (dictionary == null) {
      throw new IllegalArgumentException(
          "column \"" + field.getName() + "\": its dictionary is missing");
    }
    return (FieldVector) DictionaryEncoder.decode(numbers, dictionary, arena.allocator);
  }

  private static void rejectNested(Field column, List<Field> children) {
    for (Field child : children) {
      if (child.getDictionary() != null) {
        throw new IllegalArgumentException(
            "column \"" + column.getName() + "\" has a dictionary inside, which Java cannot read");
      }
      rejectNested(column, child.getChildren());
    }
  }

  /**
   * Returns the wanted column that a dictionary encodes; empty for a dictionary of an unwanted or
   * nested column.
   */
  private Optional<Field> encoded(long id) {
    List<Field> stored = schema.stored().getFields();
    return IntStream.range(0, wanted.length)
        .filter(i -> wanted[i])
        .mapToObj(stored::get)
        .filter(field -> field.getDictionary() != null && field.getDictionary().getId() == id)
        .findFirst();
  }

  /** Returns the field of a dictionary's values. */
  private static Field plain(Field encoded) {
    rejectNested(encoded, encoded.getChildren());
    return new Field(
        encoded.getName(), FieldType.nullable(encoded.getType()), encoded.getChildren());
  }

  private void checkSchema(Message message, Frame frame) throws Exception {
    byte[] bytes = new byte[Math.toIntExact(Math.min(frame.end(), Integer.MAX_VALUE))];
    message.copyTo(0, ByteBuffer.wrap(bytes));
    if (!Arrays.equals(bytes, schema.bytes()) && !RingSchema.parse(bytes).equals(schema.stored())) {
      throw new IllegalArgumentException(
          "its schema is " + RingSchema.parse(bytes) + ", the ring's is " + schema.stored());
    }
  }

  private List<ArrowBuf> copied(Body body, List<Piece> pieces) {
    List<ArrowBuf> buffers = pool.buffers(pieces.stream().mapToLong(Piece::size).toArray());
    for (int i = 0; i < buffers.size(); i++) {
      filled(buffers.get(i), pieces.get(i), body);
    }
    return buffers;
  }

  /** Fills a buffer: copies a piece of the message, or writes the piece's fill value. */
  private static ArrowBuf filled(ArrowBuf buffer, Piece piece, Body body) {
    if (piece.filled() > 0) {
      MemoryUtil.setMemory(buffer.memoryAddress(), piece.filled(), (byte) piece.fill());
    } else if (piece.length() > 0) {
      body.copyTo(piece.buffer(), 0, memory(buffer, piece.length()));
    }
    return buffer.writerIndex(piece.size());
  }

  private List<ArrowBuf> mapped(
      Message message, Body body, List<Piece> pieces, Runnable whenUnused) {
    MappedMessage memory = message.mapped();
    Block block =
        new Block(
            memory.address(),
            memory.length(),
            () -> {
              whenUnused.run();
              memory.close();
            });
    Iterator<ArrowBuf> beside =
        pool.buffers(pieces.stream().mapToLong(Piece::filled).filter(size -> size > 0).toArray())
            .iterator();
    List<ArrowBuf> buffers = new ArrayList<>(pieces.size());
    for (Piece piece : pieces) {
      buffers.add(
          piece.filled() > 0
              ? filled(beside.next(), piece, body)
              : block.buffer(body.place(piece.buffer()), piece.length()));
    }
    return buffers;
  }

  private List<ArrowBuf> copied(List<ArrowBuf> from) {
    List<ArrowBuf> buffers =
        pool.buffers(from.stream().mapToLong(ArrowBuf::readableBytes).toArray());
    for (int i = 0; i < buffers.size(); i++) {
      from.get(i).getBytes(0, memory(buffers.get(i), from.get(i).readableBytes()));
    }
    return buffers;
  }

  /**
   * Returns the memory of a buffer. Arrow's own method for this refuses a buffer that no batch or
   * vector has retained yet.
   */
  private static ByteBuffer memory(ArrowBuf buffer, long length) {
    return MemoryUtil.directBuffer(buffer.memoryAddress(), (int) length);
  }

  /** Makes vectors of a batch, and closes the batch. */
  private static VectorSchemaRoot load(
      Schema fields, ArrowRecordBatch batch, BufferAllocator allocator) {
    List<FieldVector> vectors = VectorSchemaRoot.create(fields, allocator).getFieldVectors();
    VectorSchemaRoot root =
        new VectorSchemaRoot(fields, vectors, 0) {
          /** Checks the loaded buffers: Arrow replaces those that are too small for the rows. */
          @Override
          public void setRowCount(int rows) {
            vectors.forEach(vector -> BatchCheck.check(vector, rows));
            super.setRowCount(rows);
          }
        };
    try (batch) {
      new VectorLoader(root).load(batch);
      return root;
    } catch (Throwable error) {
      root.close(); // gives the memory back now, not after a garbage collection
      throw error;
    }
  }

  /**
   * One encapsulated IPC message inside a ring's message: length, metadata, body. Its numbers come
   * from another process, and have been checked against the message.
   *
   * @param metadata the metadata's flatbuffer, copied out of the ring
   * @param body offset of the body in the ring's message
   * @param end offset of the end of the body in the ring's message
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

    boolean isDictionary() {
      return metadata.headerType() == MessageHeader.DictionaryBatch;
    }

    DictionaryBatch dictionary() {
      DictionaryBatch found = (DictionaryBatch) metadata.header(new DictionaryBatch());
      if (found == null || found.isDelta()) {
        throw new IllegalArgumentException("a dictionary that continues another one");
      }
      return found;
    }

    /** Returns the record batch, or the batch of a dictionary's values. */
    RecordBatch batch() {
      byte type = metadata.headerType();
      if (!isDictionary() && type != MessageHeader.RecordBatch) {
        throw new IllegalArgumentException("an Arrow message of type " + type);
      }
      RecordBatch found =
          isDictionary() ? dictionary().data() : (RecordBatch) metadata.header(new RecordBatch());
      if (found == null) {
        throw new IllegalArgumentException("an Arrow message without a batch");
      }
      return found;
    }

    private static ByteBuffer little(int size) {
      return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }
  }
}
