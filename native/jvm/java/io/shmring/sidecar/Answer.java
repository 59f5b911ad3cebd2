package io.shmring.sidecar;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A batch of a sidecar's answer; it lies in the reply ring, so that it must be closed before others come. */
public interface Answer extends AutoCloseable {
  /** Its columns, until this is closed. */
  VectorSchemaRoot batch();

  @Override
  void close();
}
