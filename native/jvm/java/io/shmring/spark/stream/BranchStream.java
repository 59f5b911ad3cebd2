package io.shmring.spark.stream;

import io.shmring.Participant;
import io.shmring.Ring;
import io.shmring.spark.read.ReadOptions;
import io.shmring.spark.read.ReadPlan.Readers;
import io.shmring.spark.read.ReadPlan;
import io.shmring.spark.stream.RingOffset.Position;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A stream in micro-batches or in real-time mode. Offsets are sequences. commit() moves the branch
 * of each ring.
 *
 * <p>Spark commits a batch only when it plans the next one. Until then the ring keeps the batch's
 * messages for the branch, and the ring also needs room for the messages of the next batch. A batch
 * therefore takes at most a quarter of the ring's slots, or it is one larger message.
 */
public final class BranchStream
    implements MicroBatchStream,
        SupportsRealTimeMode,
        SupportsTriggerAvailableNow,
        ReportsSourceMetrics {
  private static final Logger LOG = LoggerFactory.getLogger(BranchStream.class);
  private static final int PART_OF_RING = 4;

  private final ReadPlan plan;
  private final ReadOptions options;
  private final String branch;
  private final Map<String, StreamRing> rings = new TreeMap<>();
  private boolean availableNow;
  private boolean stopped;

  /**
   * @param checkpoint folder of the stream; the branch is named after it
   */
  public BranchStream(ReadPlan plan, String checkpoint) {
    this.plan = plan;
    this.options = plan.options();
    if (!options.hosts().isEmpty()) {
      throw new IllegalArgumentException(
          "option hosts is for batch reads: a stream's rings are on the driver's host");
    }
    this.branch = options.branch().isEmpty() ? branchOf(checkpoint) : options.branch();
  }

  private static String branchOf(String checkpoint) {
    return "spark-" + UUID.nameUUIDFromBytes(checkpoint.getBytes(StandardCharsets.UTF_8));
  }

  @Override
  public Offset initialOffset() {
    Map<String, Position> positions = new TreeMap<>();
    for (String name : options.rings()) {
      positions.put(name, open(name, Optional.empty()).begin());
    }
    return new RingOffset(positions);
  }

  @Override
  public Offset deserializeOffset(String json) {
    return RingOffset.parse(json);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return ReadLimit.maxRows(options.maxMessagesPerTrigger());
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    availableNow = true;
  }

  // CHANGE: edit this for a new option of Spark's reads or writes
  @Override
  public Offset latestOffset(Offset from, ReadLimit limit) {
    RingOffset start = RingOffset.of(from);
    boolean all = limit.equals(ReadLimit.allAvailable());
    long messages = all ? Long.MAX_VALUE : options.maxMessagesPerTrigger();
    int left = options.rings().size();
    Map<String, Position> positions = new TreeMap<>();
    for (String name : options.rings()) {
      StreamRing ring = open(name, start.position(name));
      Position begin = start.position(name).orElseGet(ring::begin);
      if (ring.dropOldest) {
        ring.loss(begin).ifPresent(this::lost);
      }
      long share = messages == Long.MAX_VALUE ? messages : (messages + left - 1) / left;
      Position end =
          ring.next(begin, share, all ? Long.MAX_VALUE : ring.ring.info().slots() / PART_OF_RING);
      positions.put(name, end);
      left--;
    }
    return new RingOffset(positions);
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("latestOffset(Offset, ReadLimit) is called instead");
  }

  @Override
  public Offset reportLatestOffset() {
    Map<String, Position> positions = new TreeMap<>();
    rings.forEach(
        (name, ring) -> positions.put(name, new Position(ring.uuid(), ring.available())));
    return new RingOffset(positions);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset from, Offset to) {
    RingOffset start = RingOffset.of(from);
    RingOffset end = RingOffset.of(to);
    List<InputPartition> partitions = new ArrayList<>();
    for (String name : options.rings()) {
      StreamRing ring = open(name, start.position(name));
      Position begin = start.position(name).orElseGet(ring::begin);
      ring.partition(begin, end.position(name).orElse(begin), this::lost)
          .ifPresent(partitions::add);
    }
    return partitions.toArray(InputPartition[]::new);
  }

  /** Plans a batch in real-time mode. Spark decides when the batch ends. */
  @Override
  public InputPartition[] planInputPartitions(Offset from) {
    RingOffset start = RingOffset.of(from);
    return options.rings().stream()
        .map(name -> open(name, start.position(name)).realTime(start.position(name)))
        .toArray(InputPartition[]::new);
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    Map<String, Position> positions = new TreeMap<>();
    for (PartitionOffset offset : offsets) {
      RealTimeReader.RealTimeOffset ours = (RealTimeReader.RealTimeOffset) offset;
      positions.put(ours.ring(), ours.position());
    }
    return new RingOffset(positions);
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Readers(plan);
  }

  /** Moves the branches. Spark also commits after stop() if it tracks progress asynchronously. */
  @Override
  public synchronized void commit(Offset end) {
    boolean late = stopped;
    stopped = false;
    try {
      for (String name : options.rings()) {
        Optional<Position> position = RingOffset.of(end).position(name);
        if (position.isPresent()) {
          open(name, position).commit(position.get());
        }
      }
    } catch (InterruptedException error) {
      // Some branches have not been moved: the next commit moves them.
      Thread.currentThread().interrupt();
    } finally {
      if (late) {
        stop();
      }
    }
  }

  @Override
  public synchronized void stop() {
    stopped = true;
    rings.values().forEach(StreamRing::close);
    rings.clear();
  }

  /**
   * Attaches to a ring at its first use, because the position where the stream continues is not
   * known before.
   */
  private synchronized StreamRing open(String name, Optional<Position> start) {
    if (stopped) {
      throw new IllegalStateException("the stream was stopped");
    }
    StreamRing ring = rings.get(name);
    if (ring == null) {
      ring = new StreamRing(name, branch, start, options);
      rings.put(name, ring);
      if (availableNow) {
        ring.stopHere();
      }
      start.flatMap(ring::loss).ifPresent(this::lost);
    }
    return ring;
  }

  private void lost(String what) {
    if (options.failOnDataLoss()) {
      throw new IllegalStateException(
          what
              + ": the stream cannot go on without a gap. Start it with a new checkpoint, or with"
              + " .option(\"failOnDataLoss\", \"false\")");
    }
    LOG.warn("{}; the stream goes on behind the gap", what);
  }

  @Override
  public synchronized Map<String, String> metrics(Optional<Offset> latestConsumed) {
    long lag = 0;
    long held = 0;
    long bytes = 0;
    long waits = 0;
    for (Map.Entry<String, StreamRing> entry : rings.entrySet()) {
      Ring ring = entry.getValue().ring;
      Position done =
          latestConsumed
              .flatMap(offset -> RingOffset.of(offset).position(entry.getKey()))
              .orElseGet(entry.getValue()::begin);
      lag += Math.max(ring.claimed() - done.sequence(), 0);
      held += ring.claimed() - ring.floor();
      for (Participant participant : ring.participants()) {
        bytes += participant.bytes(); // bytes of producers; consumers count no bytes
        waits += participant.fullWaits();
      }
    }
    return Map.of(
        "lagSlots", Long.toString(lag),
        "heldSlots", Long.toString(held),
        "producedBytes", Long.toString(bytes),
        "producerWaits", Long.toString(waits));
  }
}
