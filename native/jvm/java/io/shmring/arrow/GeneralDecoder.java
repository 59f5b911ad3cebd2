package io.shmring.arrow;

import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.util.AutoCloseables;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.VectorUnloader;
import org.apache.arrow.vector.compression.CompressionCodec;
import org.apache.arrow.vector.dictionary.Dictionary;
import org.apache.arrow.vector.dictionary.DictionaryEncoder;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.types.pojo.Schema;

/** Decodes batches that cannot be cut out of a message: compressed or dictionary-encoded ones. */
final class GeneralDecoder implements AutoCloseable {
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
