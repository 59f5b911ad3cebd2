package io.shmring.spark.write;

import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.WRITE;

import io.shmring.Ring;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** Stages the rows of one task in its own file. */
final class PartWriter implements DataWriter<InternalRow> {
  private final Path path;
  private final FileChannel file;
  private final RowEncoder encoder;
  private long rows;

  PartWriter(PartWriterFactory factory, String name) {
    this.path = Path.of(factory.folder(), name);
    try (Ring ring =
        factory.place().attachReadOnly(factory.options().hostWaitMillis())) {
      this.file = FileChannel.open(path, CREATE_NEW, WRITE);
      this.encoder = RowEncoder.of(ring, factory.schema(), factory.options(), file);
    } catch (IOException error) {
      throw new UncheckedIOException("cannot stage rows in " + path, error);
    }
  }

  @Override
  public void write(InternalRow row) throws IOException {
    rows++;
    encoder.write(row);
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    encoder.flush();
    file.close();
    return encoder.staged(path.toString(), rows);
  }

  @Override
  public void abort() throws IOException {
    file.close();
    Files.deleteIfExists(path);
  }

  @Override
  public void close() throws IOException {
    encoder.close();
    file.close();
  }
}
