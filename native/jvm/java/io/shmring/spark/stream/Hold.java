package io.shmring.spark.stream;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Ring;
import java.util.UUID;

/** Holds messages for a moment, on behalf of a branch that may lapse, by a branch of its own. */
final class Hold implements AutoCloseable {
  private final Consumer consumer;
  private final long first;

  /**
   * @param from holds what comes from there on, or what of that has not been overwritten
   */
  Hold(Ring ring, long from, String who) {
    String name = "spark-" + UUID.randomUUID();
    consumer = ring.consumer(name, BranchOptions.at(from).asExclusive().asEphemeral(), who);
    first = ring.branch(name).map(BranchInfo::position).orElseThrow();
  }

  /** The first sequence that is held. */
  long first() {
    return first;
  }

  /** The end of what is published. */
  long available() {
    return consumer.available();
  }

  @Override
  public void close() {
    consumer.close();
  }
}
