package io.shmring.sidecar;

import org.apache.arrow.vector.VectorSchemaRoot;

/** A batch of a sidecar's answer. It lies in the reply ring, so close it before asking for the next one. */
public interface Answer extends AutoCloseable {
  /** The batch's columns, which stay valid until this is closed. */
  VectorSchemaRoot batch();

  @Override
  void close();
}
