package io.shmring.spark.request;

import io.shmring.spark.columns.RootWriter;

/** Writes rows into vectors: a batch, or several that go as one request. */
final class BatchFiller {
  // Most bytes of a request that several batches share. In a request of this size, the fixed cost
  // of a request hardly counts.
  private static final long MOST_TOGETHER = 1 << 20;

  // Time, from the start of filling a request, after which no further batch joins the request: the
  // function should not wait for a slow child. The batch being filled is still finished.
  private static final long READY_NANOS = 1_000_000;

  // After the child has taken longer than READY_NANOS to give a row, this many requests carry only
  // one batch each: the child will probably be as slow again.
  private static final int ALONE = 16;

  private final int mostRows;
  private final int cutRows;
  private int alone; // number of further requests that carry only one batch each
  private int cut; // rows taken from the child since their number was a multiple of cutRows

  /**
   * @param mostRows most rows of a batch
   * @param cutRows a batch ends when the number of rows taken from the child reaches a multiple of
   *     cutRows; 0: no batch ends for this reason
   */
  BatchFiller(int mostRows, int cutRows) {
    this.mostRows = mostRows;
    this.cutRows = cutRows;
  }

  /**
   * Fills the vectors with one batch, or with several that go as one request.
   *
   * @param most most batches of the request; only one batch is filled while `alone` is above 0
   * @param mostBytes most bytes of a batch; batches are joined only up to half of this size
   */
  void fill(Input input, Vectors vectors, int most, long mostBytes) {
    RootWriter writer = vectors.writer();
    int joined = alone > 0 ? 1 : most;
    alone = Math.max(0, alone - 1);
    long begun = System.nanoTime();
    long bytes = 0;
    long moreBytes;
    int batches = 0;
    int filled = 0;
    int more;
    do {
      more = input.fill(writer, rowsToCut());
      moreBytes = writer.bytes() - bytes;
      cut = cutRows > 0 ? (cut + more) % cutRows : 0;
      filled += more;
      bytes += moreBytes;
      batches += more > 0 ? 1 : 0; // fill() returns 0 if the vectors are full: not a batch
    } while (batches < joined
        && more == mostRows // only the last batch of a request may have fewer rows
        && bytes + moreBytes <= Math.min(MOST_TOGETHER, mostBytes / 2)
        && System.nanoTime() - begun < READY_NANOS
        && goesOn(input));
    input.cut();
    vectors.filled(filled, batches);
  }

  private int rowsToCut() {
    return cutRows > 0 ? Math.min(mostRows, cutRows - cut) : mostRows;
  }

  private boolean goesOn(Input input) {
    long asked = System.nanoTime();
    boolean more = input.hasNext();
    if (System.nanoTime() - asked > READY_NANOS) {
      alone = ALONE;
    }
    return more;
  }
}
