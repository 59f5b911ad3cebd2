import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * Notes how long ago each message was sent: its first 8 bytes are the time on CLOCK_MONOTONIC, which
 * is System.nanoTime(). Spark serializes the sink for its tasks, which run in the driver here.
 */
public final class LatencySink extends ForeachWriter<Row> {
  private static final long[] NANOS = new long[4_000_000];
  private static final AtomicInteger COUNT = new AtomicInteger();

  public static void clear() {
    COUNT.set(0);
  }

  public static int count() {
    return COUNT.get();
  }

  /** The latency that so many (0 to 1) of all messages behind the first `skipped` did not exceed. */
  public static long quantile(int skipped, double share) {
    long[] nanos = Arrays.copyOfRange(NANOS, skipped, COUNT.get());
    Arrays.sort(nanos);
    return nanos[(int) (share * (nanos.length - 1))];
  }

  @Override
  public boolean open(long partition, long epoch) {
    return true;
  }

  @Override
  public void process(Row row) {
    byte[] message = (byte[]) row.get(0);
    long sent = ByteBuffer.wrap(message).order(ByteOrder.LITTLE_ENDIAN).getLong();
    NANOS[COUNT.getAndIncrement()] = System.nanoTime() - sent;
  }

  @Override
  public void close(Throwable error) {}
}
