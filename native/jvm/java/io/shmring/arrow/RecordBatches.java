package io.shmring.arrow;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BufferLayout.BufferType;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TypeLayout;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;

/**
 * Columns as a record batch. Arrow 18, which Spark 4.1 has, leaves out the one offset of a
 * column without values, such as the inner columns of empty lists; readers crash without it.
 */
public final class RecordBatches {
  private RecordBatches() {}

  /** Returns the batch, whose buffers are the columns' own; the caller closes it. */
  public static ArrowRecordBatch of(VectorSchemaRoot root) {
    ArrowRecordBatch batch = new VectorUnloader(root).getRecordBatch();
    List<Integer> places = new ArrayList<>();
    int buffers = 0;
    for (FieldVector column : root.getFieldVectors()) {
      buffers = findMissing(column, buffers, batch.getBuffers(), places);
    }
    return places.isEmpty() ? batch : filled(batch, root, places);
  }

  /**
   * Adds the places of a column's missing offsets, and of those below it.
   *
   * @param first of the column's buffers
   * @return the first buffer of the next column
   */
  private static int findMissing(
      FieldVector column, int first, List<ArrowBuf> buffers, List<Integer> places) {
    List<BufferType> types = TypeLayout.getTypeLayout(column.getField().getType()).getBufferTypes();
    int next = first + column.getFieldBuffers().size();
    for (int i = 0; i < types.size() && first + i < next; i++) {
      if (types.get(i) == BufferType.OFFSET && buffers.get(first + i).readableBytes() == 0) {
        places.add(first + i);
      }
    }
    for (FieldVector child : column.getChildrenFromFields()) {
      next = findMissing(child, next, buffers, places);
    }
    return next;
  }

  private static ArrowRecordBatch filled(
      ArrowRecordBatch batch, VectorSchemaRoot root, List<Integer> places) {
    List<ArrowBuf> buffers = new ArrayList<>(batch.getBuffers());
    try (batch;
        ArrowBuf zero = root.getVector(0).getAllocator().buffer(Long.BYTES)) {
      zero.writeLong(0);
      places.forEach(place -> buffers.set(place, zero));
      return new ArrowRecordBatch(
          batch.getLength(),
          batch.getNodes(),
          buffers,
          batch.getBodyCompression(),
          batch.getVariadicBufferCounts(),
          true);
    }
  }
}
