package io.shmring.spark.write;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Rows whose one column is the message: binary, or text as UTF-8. */
final class ByteRows extends RowEncoder {
  private static final int BUFFER = 1 << 18;

  private final FileChannel file;
  private final boolean text;
  private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER);

  ByteRows(StructType rows, FileChannel file) {
    this.file = file;
    this.text = rows.fields()[0].dataType().equals(DataTypes.StringType);
  }

  @Override
  void write(InternalRow row) throws IOException {
    if (row.isNullAt(0)) {
      throw new IllegalArgumentException("a message cannot be null");
    }
    byte[] message = text ? row.getUTF8String(0).getBytes() : row.getBinary(0);
    add(message.length, -1);
    if (message.length > buffer.remaining()) {
      flush();
    }
    if (message.length > buffer.capacity()) {
      write(ByteBuffer.wrap(message));
    } else {
      buffer.put(message);
    }
  }

  @Override
  void flush() throws IOException {
    buffer.flip();
    write(buffer);
    buffer.clear();
  }

  private void write(ByteBuffer bytes) throws IOException {
    while (bytes.hasRemaining()) {
      file.write(bytes);
    }
  }

  @Override
  public void close() {}
}
