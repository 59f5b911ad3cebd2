package io.shmring.spark.read;

import io.shmring.BranchInfo;
import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Ring;
import java.util.UUID;

/** A branch that one reader makes for itself, that nobody else joins, and that goes with it. */
public final class OwnBranch implements AutoCloseable {
  private final String name = "spark-" + UUID.randomUUID();
  private final Ring ring;
  private final Consumer consumer;

  /**
   * @param start holds what comes from there on, or what of that has not been overwritten
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
