package io.shmring.spark.read;

import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.EndOfStreamException;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Ring;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.job.RingMetric;
import io.shmring.spark.job.RingMetric.Value;
import io.shmring.spark.job.RingPlace;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import org.apache.arrow.util.AutoCloseables;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Reads a ring in a task of Spark: attaches to the ring, decodes messages into columns, and counts
 * the messages for Spark's UI.
 *
 * @param <T> type of a result: a batch of columns with the rows of several messages, or one row
 */
public abstract class RingReader<T> implements PartitionReader<T> {
  // CHANGE: edit this for a new metric
  private static final String MESSAGES = "ringMessages";
  private static final String BYTES = "ringBytes";
  private static final String WAITS = "ringWaits";

  protected final TaskContext task = TaskContext.get();
  protected final Ring ring; // closed at the end of the task, also if the constructor fails
  protected final RingColumns columns;
  protected T found;
  private long messages;
  private long bytes;
  private long waits;

  protected RingReader(RingPlace place, ReadPlan plan) {
    ring = closedAtEnd(place.attach(plan.options().hostWaitMillis()));
    columns = RingColumns.of(ring, plan.schema(), plan.columns());
  }

  /**
   * Closes an object at the end of the task, because Spark closes only readers whose constructor
   * succeeded. The object that was added last is closed first.
   */
  protected final <C extends AutoCloseable> C closedAtEnd(C opened) {
    task.addTaskCompletionListener(
        (TaskCompletionListener) context -> AutoCloseables.closeNoChecked(opened));
    return opened;
  }

  /**
   * Takes the next messages; returns empty if no message came in time.
   *
   * @throws EndOfStreamException if another consumer of the branch has reached the end marker; if
   *     this consumer reaches the marker, the lease contains the marker like a message
   */
  protected final Optional<Lease> take(Consumer consumer, int count, long millis)
      throws IOException {
    try {
      return consumer.poll(count, Long.MAX_VALUE, Duration.ofMillis(millis));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("the task was interrupted while it waited for a message", error);
    }
  }

  /** Returns the iterator's next messages for one batch, without end markers, and counts them. */
  protected final List<Message> next(Iterator<Message> from) {
    List<Message> taken = new ArrayList<>();
    while (taken.size() < columns.messagesPerBatch() && from.hasNext()) {
      Message message = from.next();
      if (!message.isEnd()) {
        taken.add(message);
        bytes += message.length();
      }
    }
    messages += taken.size();
    return taken;
  }

  protected final void waited() {
    waits++;
  }

  @Override
  public final T get() {
    return found;
  }

  @Override
  public final CustomTaskMetric[] currentMetricsValues() {
    return new CustomTaskMetric[] {
      new Value(MESSAGES, messages), new Value(BYTES, bytes), new Value(WAITS, waits)
    };
  }

  public static CustomMetric[] supportedMetrics() {
    return new CustomMetric[] {new Messages(), new Bytes(), new Waits()};
  }

  public static final class Messages extends RingMetric {
    public Messages() {
      super(MESSAGES, "messages taken from rings");
    }
  }

  public static final class Bytes extends RingMetric {
    public Bytes() {
      super(BYTES, "bytes of messages taken from rings");
    }
  }

  public static final class Waits extends RingMetric {
    public Waits() {
      super(WAITS, "waits for an empty ring");
    }
  }

  /**
   * Makes a branch for one reader alone, and returns the branch's only consumer. The branch is
   * dropped when this consumer leaves.
   *
   * @param start position at which the branch begins; if messages from this position on were
   *     overwritten, the branch begins after these messages
   */
  public static Consumer ownBranch(Ring ring, BranchOptions start, String who) {
    return ring.consumer("spark-" + UUID.randomUUID(), start.asExclusive().asEphemeral(), who);
  }
}
