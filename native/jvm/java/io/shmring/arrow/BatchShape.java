package io.shmring.arrow;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BufferLayout;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;

/**
 * Nodes and buffers of a batch's wanted columns. Arrow's loader allocates as much as rows, nodes
 * and offsets ask for, so all three are compared with each other and with the message before memory
 * is allocated. The buffers of a compressed batch are not looked into: an {@link Arena} limits what
 * the loader allocates for them, and {@link BatchCheck} looks at the decompressed values.
 */
final class BatchShape {
  /**
   * A buffer to copy, or a validity buffer to make because the batch has left it out.
   *
   * @param buffer number of the buffer in the batch
   * @param length bytes to copy
   * @param filled bytes to make instead; 0 if the buffer is copied
   * @param fill value of each byte to make: 0xff if no value is null, 0 if all are
   */
  record Piece(int buffer, long length, int filled, int fill) {
    /** Returns the bytes to copy or to make. */
    long size() {
      return length + filled;
    }
  }

  /** A field of a batch with its buffers. A field with a dictionary has numbers as its values. */
  record Part(Field field, List<BufferLayout> layouts, List<Part> children) {
    static Part of(Field stored) {
      Field field =
          stored.getDictionary() == null
              ? stored
              : new Field(
                  stored.getName(),
                  FieldType.nullable(stored.getDictionary().getIndexType()),
                  List.of());
      return new Part(
          field,
          TypeLayout.getTypeLayout(field.getType()).getBufferLayouts(),
          field.getChildren().stream().map(Part::of).toList());
    }
  }

  private final RecordBatch batch;
  private final Body body;
  private final boolean isCompressed;
  private int node;
  private int buffer;
  private int view;
  private long room;
  private final int rows;
  private final List<ArrowFieldNode> nodes = new ArrayList<>();
  private final List<Long> variadicCounts = new ArrayList<>();
  final List<Piece> pieces = new ArrayList<>();

  /**
   * @param parts all columns of the schema
   * @param wanted for each column, whether it is wanted
   * @throws IllegalArgumentException if the batch contradicts itself, its schema or its message
   */
  BatchShape(List<Part> parts, boolean[] wanted, Body body) {
    this.batch = body.batch();
    this.body = body;
    this.isCompressed = batch.compression() != null;
    this.rows = Math.toIntExact(batch.length());
    for (int i = 0; i < wanted.length; i++) {
      if (wanted[i]) {
        add(parts.get(i), rows, true);
      } else {
        nextNode(parts.get(i), rows, true);
        skipBelow(parts.get(i));
      }
    }
    if (node != batch.nodesLength() || buffer != batch.buffersLength()) {
      throw new IllegalArgumentException(
          String.format(
              "its columns have %d nodes and %d buffers, those of the schema %d and %d",
              batch.nodesLength(), batch.buffersLength(), node, buffer));
    }
  }

  /**
   * @param buffers a buffer for each piece
   */
  ArrowRecordBatch batch(List<ArrowBuf> buffers) {
    return new ArrowRecordBatch(rows, nodes, buffers, body.compression(), variadicCounts, true);
  }

  private void skipBelow(Part part) {
    for (BufferLayout layout : part.layouts) {
      buffer += 1 + variadic(part, layout);
    }
    for (Part child : part.children) {
      node++;
      skipBelow(child);
    }
  }

  /**
   * Returns the number of buffers that follow the buffer of views, for values that do not fit into
   * their views.
   */
  private int variadic(Part part, BufferLayout layout) {
    if (layout.getType() != BufferLayout.BufferType.VIEWS) {
      return 0;
    }
    long count = view < batch.variadicBufferCountsLength() ? batch.variadicBufferCounts(view) : -1;
    view++;
    if (count < 0 || count > batch.buffersLength()) {
      throw damaged(part, "it has %d buffers of views", count);
    }
    return (int) count;
  }

  /**
   * Returns the next node of the batch, after a check of its numbers.
   *
   * @param least the number of values that the parent or the batch has
   * @param exact whether the node must have exactly `least` values; if false, it may have more
   */
  private FieldNode nextNode(Part part, long least, boolean exact) {
    if (node >= batch.nodesLength()) {
      throw damaged(part, "it has no node");
    }
    FieldNode found = batch.nodes(node++);
    long length = found.length();
    if (length < least || (exact && length > least) || length > Integer.MAX_VALUE) {
      throw damaged(part, "it has %d values of %d", length, least);
    }
    if (found.nullCount() < 0 || found.nullCount() > length) {
      throw damaged(part, "it has %d nulls in %d values", found.nullCount(), length);
    }
    return found;
  }

  private void add(Part part, long least, boolean exact) {
    FieldNode found = nextNode(part, least, exact);
    long length = found.length();
    nodes.add(new ArrowFieldNode(length, found.nullCount()));
    boolean hasOffsets = false;
    // The last offset, if the part has offsets: it counts the elements of all lists, or the bytes
    // in all texts or binaries. If the part has no offsets, the number of values.
    long end = length;
    for (BufferLayout layout : part.layouts) {
      int width = layout.getTypeBitWidth();
      switch (layout.getType()) {
        case VALIDITY -> addValidity(part, found);
        case OFFSET -> {
          addBuffer(part, "offsets", length == 0 ? 0 : (length + 1) * width / Byte.SIZE);
          end = length == 0 ? 0 : offset(part, length, width / Byte.SIZE);
          hasOffsets = true;
        }
        case DATA -> addBuffer(part, "values", hasOffsets ? end : bytes(length, width));
        case VIEWS -> addViews(part, layout);
        default -> throw unchecked(part);
      }
    }
    for (Part child : part.children) {
      add(child, childLength(part, end), !hasOffsets);
    }
  }

  private static long childLength(Part part, long end) {
    ArrowType type = part.field.getType();
    if (type instanceof ArrowType.RunEndEncoded) {
      throw unchecked(part);
    }
    return type instanceof ArrowType.FixedSizeList list
        ? Math.multiplyExact(end, list.getListSize())
        : end;
  }

  private void addViews(Part part, BufferLayout layout) {
    int count = variadic(part, layout);
    variadicCounts.add((long) count);
    for (int i = 0; i <= count; i++) {
      addBuffer(part, "views", 0); // no least size, because BatchCheck checks each view later
    }
  }

  private void addBuffer(Part part, String what, long least) {
    long length = nextLength(part);
    if (length < least && !isCompressed) {
      throw damaged(part, "its buffer of %s has %d bytes of %d", what, length, least);
    }
    add(new Piece(buffer++, length, 0, 0));
  }

  /**
   * Adds the validity buffer. If the batch has left it out, because all values are null or none is,
   * adds a buffer of zeros or ones instead.
   */
  private void addValidity(Part part, FieldNode found) {
    long length = found.length();
    if (nextLength(part) > 0 || length == 0 || isCompressed) {
      addBuffer(part, "validity", bytes(length, 1));
      return;
    }
    if (found.nullCount() > 0 && found.nullCount() < length) {
      throw damaged(part, "%d of %d values are null, and nothing says which", found.nullCount(), length);
    }
    add(new Piece(buffer++, 0, (int) bytes(length, 1), found.nullCount() == 0 ? 0xff : 0));
  }

  private long nextLength(Part part) {
    if (buffer >= batch.buffersLength()) {
      throw damaged(part, "it has too few buffers");
    }
    return body.length(buffer);
  }

  private void add(Piece piece) {
    room += BlockPool.aligned(piece.size());
    if (piece.length > Integer.MAX_VALUE || room > body.limit()) {
      throw new IllegalArgumentException(
          String.format(
              "its columns would take more than %d bytes of memory, and that is the limit for a"
                  + " message of its size; let the producer write smaller batches",
              body.limit()));
    }
    pieces.add(piece);
  }

  /** Reads the last offset of the buffer that was added last; returns 0 if it is compressed. */
  private long offset(Part part, long length, int width) {
    if (isCompressed) {
      return 0;
    }
    ByteBuffer bytes = ByteBuffer.allocate(width).order(ByteOrder.LITTLE_ENDIAN);
    body.copyTo(buffer - 1, length * width, bytes);
    long last = width == Long.BYTES ? bytes.getLong(0) : bytes.getInt(0);
    if (last < 0) {
      throw damaged(part, "its last offset is %d", last);
    }
    return last;
  }

  private static long bytes(long values, int bits) {
    return (values * bits + 7) / 8;
  }

  private static IllegalArgumentException unchecked(Part part) {
    return damaged(part, "values of type %s cannot be checked", part.field.getType());
  }

  private static IllegalArgumentException damaged(Part part, String format, Object... values) {
    return new IllegalArgumentException(
        String.format("column \"%s\": ", part.field.getName()) + String.format(format, values));
  }
}
