package io.shmring.spark.request;

import io.shmring.exchange.SidecarClient;
import io.shmring.spark.columns.RootWriter;
import java.util.List;

/**
 * Writes the groups of one request into vectors: several groups if the function cannot notice that
 * they came together, else one.
 */
final class GroupFiller {
  // Limits at which a request takes no more groups: bytes, rows, or time spent filling it.
  private static final long JOINED_BYTES = 1 << 19;
  private static final int JOINED_ROWS = 10_000;
  private static final long JOINED_NANOS = 50_000_000;

  private final boolean joins;
  private final int mostRows;
  private boolean apart; // whether each group is a request of its own
  // Groups of the next request: 1, 2, 4, ..., so that a slow function answers early.
  private int wanted = 1;

  /**
   * @param joins whether one request may have several groups
   * @param mostRows maximum number of rows of a batch
   */
  GroupFiller(boolean joins, int mostRows) {
    this.joins = joins;
    this.mostRows = mostRows;
  }

  /** Returns the bytes at which a request takes no more groups; 0 if groups are not joined. */
  long joinedBytes() {
    return joins ? JOINED_BYTES : 0;
  }

  /**
   * Puts only one group into each further request: on a socket, Spark's worker reads each group as
   * an Arrow stream of its own. The first request always has one group.
   */
  void keepApart() {
    apart = true;
    wanted = 1;
  }

  /**
   * Writes the next groups or cogroups, or the next batch of a group that is larger than a batch.
   *
   * @param sides empty vectors of each side; the vectors of one side may stay empty
   */
  void fill(GroupInput input, List<Vectors> sides) {
    long begun = System.nanoTime();
    long bytes;
    int rows = 0;
    int groups = 0;
    do {
      Vectors vectors = sides.get(input.side());
      int more = input.fill(vectors.writer(), mostRows);
      vectors.addGroup(more, input.goesOn());
      rows += more;
      groups += input.side() == 0 ? 1 : 0;
      bytes = sides.stream().mapToLong(each -> each.writer().bytes()).sum();
    } while (!input.goesOn()
        && (input.side() > 0
            || groups < wanted
                && bytes < JOINED_BYTES
                && rows < JOINED_ROWS
                && System.nanoTime() - begun < JOINED_NANOS
                && input.hasNext()));
    wanted = joins && !apart ? Math.min(2 * wanted, JOINED_ROWS) : 1;
  }

  /**
   * Writes a whole group or cogroup for a sidecar. If the group is too large for a request, only
   * counts its rows and bytes, for the text of the error.
   */
  static void fillWhole(GroupInput input, Vectors vectors, SidecarClient client) {
    long enough = client.requestRingBytes() / 2;
    long rows = 0;
    long bytes = 0;
    for (RootWriter writer : vectors.writers()) {
      do {
        if (writer.vectorBytes() > enough) {
          bytes += writer.vectorBytes();
          writer.reset(enough);
        }
        writer.limit(enough); // fill() returns at this size, so that the loop can reset the writer
        rows += input.fill(writer, Integer.MAX_VALUE);
      } while (input.goesOn());
      bytes += writer.vectorBytes();
    }
    client.checkSize(rows, bytes);
    vectors.filled(Math.toIntExact(rows), 1);
  }
}
