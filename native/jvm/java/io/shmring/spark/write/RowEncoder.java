package io.shmring.spark.write;

import io.shmring.Ring;
import io.shmring.arrow.RingSchema;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/** Makes messages of rows, one behind the other in a file. */
abstract class RowEncoder implements AutoCloseable {
  private int[] lengths = new int[16];
  private int[] aligns = new int[16];
  private int count;

  static RowEncoder of(Ring ring, StructType rows, WriteOptions options, FileChannel file) {
    return RingSchema.of(ring)
        .map(schema -> (RowEncoder) new ArrowRows(ring, schema, options, file))
        .orElseGet(() -> new ByteRows(rows, file));
  }

  abstract void write(InternalRow row) throws IOException;

  /** Writes the rows that do not fill a message yet. */
  abstract void flush() throws IOException;

  @Override
  public abstract void close();

  void add(int length, int align) {
    if (count == lengths.length) {
      lengths = Arrays.copyOf(lengths, count * 2);
      aligns = Arrays.copyOf(aligns, count * 2);
    }
    lengths[count] = length;
    aligns[count] = align;
    count++;
  }

  StagedFile staged(String path, long rows) {
    return new StagedFile(path, rows, Arrays.copyOf(lengths, count), Arrays.copyOf(aligns, count));
  }
}
