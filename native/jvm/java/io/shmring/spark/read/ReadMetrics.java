package io.shmring.spark.read;

import io.shmring.Message;
import io.shmring.spark.job.RingMetric;
import io.shmring.spark.job.RingMetric.Value;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Counters of a task's reads, for Spark's UI. */
public final class ReadMetrics {
  private static final String MESSAGES = "ringMessages";
  private static final String BYTES = "ringBytes";
  private static final String WAITS = "ringWaits";

  private long messages;
  private long bytes;
  private long waits;

  /** Takes the messages of a batch, and counts them; end markers are stepped over. */
  List<Message> take(Iterator<Message> from, int most) {
    List<Message> taken = new ArrayList<>();
    while (taken.size() < most && from.hasNext()) {
      Message message = from.next();
      if (!message.isEnd()) {
        taken.add(message);
        bytes += message.length();
      }
    }
    messages += taken.size();
    return taken;
  }

  public void waited() {
    waits++;
  }

  public CustomTaskMetric[] values() {
    return new CustomTaskMetric[] {
      new Value(MESSAGES, messages), new Value(BYTES, bytes), new Value(WAITS, waits)
    };
  }

  public static CustomMetric[] supported() {
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
}
