package io.shmring.spark.write;

import io.shmring.spark.columns.RootWriter;
import io.shmring.spark.job.Options;
import io.shmring.spark.job.RingNames;
import io.shmring.spark.job.RingPlace;
import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

// CHANGE: edit this for a new option of Spark's reads or writes
/** The options of a write, checked. docs/reference/spark.md says what each option does. */
public record WriteOptions(
    String ring,
    long hostWaitMillis,
    int batchRows,
    long batchBytes,
    long timeoutMillis,
    boolean atomic,
    boolean endMarker,
    String inDoubt)
    implements Serializable {
  /**
   * Largest value of batchBytes: half of the largest int. The size of a column is an int, and a
   * batch may exceed batchBytes by its last row: the other half leaves room for that row.
   */
  private static final long MOST_BYTES = 1 << 30;

  public static WriteOptions of(CaseInsensitiveStringMap given) {
    Options options = new Options(given);
    List<String> rings = RingNames.of(given);
    if (rings.size() != 1) {
      throw new IllegalArgumentException(
          "a write goes into one ring, not into " + String.join(", ", rings));
    }
    return new WriteOptions(
        rings.get(0),
        options.millis("hostWait", RingPlace.WAIT_MILLIS),
        (int) options.positive("batchRows", 10_000, RootWriter.MOST_ROWS),
        options.positive("batchBytes", 1 << 20, MOST_BYTES),
        options.millis("timeout", 300_000),
        options.flag("atomic", false),
        options.flag("endMarker", false),
        options.choice("inDoubt", List.of("fail", "skip", "write")));
  }
}
