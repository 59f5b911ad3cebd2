package io.shmring.spark;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of a write, checked.
 *
 * @param ring name or path
 * @param batchRows rows of one message at most
 * @param batchBytes roughly, of one message
 * @param timeoutMillis how long the commit waits for room
 * @param atomic a job that is too large to become readable at once is refused
 * @param endMarker the job's last message is the end marker
 * @param inDoubt what to do with an epoch of which nobody can say whether it was published
 */
record WriteOptions(
    String ring,
    int batchRows,
    long batchBytes,
    long timeoutMillis,
    boolean atomic,
    boolean endMarker,
    String inDoubt)
    implements Serializable {

  static WriteOptions of(CaseInsensitiveStringMap options) {
    List<String> rings = RingNames.of(options);
    if (rings.size() != 1) {
      throw new IllegalArgumentException(
          "a write goes into one ring, not into " + String.join(", ", rings));
    }
    String inDoubt = options.getOrDefault("inDoubt", "fail");
    if (!List.of("fail", "skip", "write").contains(inDoubt)) {
      throw new IllegalArgumentException(
          "option inDoubt must be fail, skip or write, not \"" + inDoubt + "\"");
    }
    return new WriteOptions(
        rings.get(0),
        options.getInt("batchRows", 10_000),
        options.getLong("batchBytes", 1 << 20),
        (long) (options.getDouble("timeout", 300) * 1000),
        options.getBoolean("atomic", false),
        options.getBoolean("endMarker", false),
        inDoubt);
  }
}
