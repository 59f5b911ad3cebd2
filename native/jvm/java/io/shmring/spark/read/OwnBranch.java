package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Ring;
import java.util.UUID;

/** A branch that one reader makes for itself; it is dropped with the reader, and nobody else joins it. */
public final class OwnBranch implements AutoCloseable {
  private final String name = "spark-" + UUID.randomUUID();
  private final Ring ring;
  private final Consumer consumer;

  /**
   * @param start the branch holds messages from there on, except those that are overwritten already
   */
  public OwnBranch(Ring ring, BranchOptions start, String who) {
    this.ring = ring;
    this.consumer = ring.consumer(name, start.asExclusive().asEphemeral(), who);
  }

  /** Its only consumer. */
  public Consumer consumer() {
    return consumer;
  }

  /** The first sequence that it holds. */
  public long first() {
    return ring.branch(name).map(BranchInfo::position).orElseThrow();
  }

  @Override
  public void close() {
    consumer.close();
  }
}
