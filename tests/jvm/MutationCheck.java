import io.shmring.BranchOptions;
import io.shmring.Claim;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import io.shmring.RingException;
import io.shmring.Status;
import io.shmring.arrow.BatchDecoder;
import io.shmring.arrow.RingSchema;
import io.shmring.spark.columns.RingColumns;
import io.shmring.spark.columns.RingTypes;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Changes the messages of a ring at random, and reads each: it is Damaged, or all its values can be read. `RING
 * KIND ROUNDS SEED`; KIND is rows (through Spark's columns), vectors, or asis (the ring's own messages, ROUNDS
 * times). Prints how many were read, how many were not, and the last one's error.
 */
public final class MutationCheck extends Checks {
  private static final int MOST_ROWS = 1000; // rows read of a batch, at most
  private static final long[] NUMBERS = {
    -1, 0, 1, 7, 21, 1 << 20, Integer.MAX_VALUE - 7, 1L << 31, 1L << 33, Long.MAX_VALUE, Long.MIN_VALUE
  };

  /** Reads all values of a message. */
  private interface Reading {
    void of(Message message, boolean inPlace);
  }

  private MutationCheck() {}

  public static void main(String[] arguments) throws Exception {
    Random random = new Random(Long.parseLong(arguments[3]));
    int rounds = Integer.parseInt(arguments[2]);
    boolean asIs = arguments[1].equals("asis");
    try (RootAllocator allocator = new RootAllocator();
        Ring ring = Ring.attach(arguments[0])) {
      List<byte[]> valid = new ArrayList<>();
      List<Integer> kinds = new ArrayList<>();
      try (Consumer consumer = ring.consumer("valid", BranchOptions.EARLIEST);
          Lease lease = consumer.poll(100, Long.MAX_VALUE, PATIENCE).orElseThrow()) {
        for (Message message : lease) {
          valid.add(message.bytes());
          kinds.add(message.kind());
        }
      }
      Reading reading = arguments[1].equals("rows") ? rows(ring) : vectors(ring, allocator);
      int read = 0;
      String last = "";
      try (Consumer consumer = ring.consumer("mutated", BranchOptions.LATEST);
          Producer producer = ring.producer("mutations")) {
        for (int round = 0; round < rounds; round++) {
          byte[] bytes = valid.get(round % valid.size()).clone();
          if (!asIs) {
            mutate(bytes, random);
          }
          try (Claim claim = producer.claim(bytes.length)) {
            claim.put(0, ByteBuffer.wrap(bytes));
            claim.commit(kinds.get(round % valid.size()));
          }
          try (Lease lease = consumer.poll(PATIENCE).orElseThrow()) {
            reading.of(lease.message(), false);
            reading.of(lease.message(), true);
            read++;
          } catch (RingException damaged) {
            check(damaged.status() == Status.DAMAGED, damaged.toString());
            last = damaged.getMessage();
          }
        }
      }
      check(allocator.getAllocatedMemory() == 0, "memory stays allocated");
      System.out.println(read);
      System.out.println(rounds - read);
      System.out.println(last);
      System.out.println(direct());
      System.out.println(fullCollections());
    }
  }

  /** Changes mostly numbers of the metadata, which come first. The core checks the first 8 bytes. */
  private static void mutate(byte[] bytes, Random random) {
    ByteBuffer message = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    int metadata = Math.min(1024, bytes.length);
    for (int i = random.nextInt(3); i >= 0; i--) {
      int end = random.nextInt(4) == 0 ? bytes.length : metadata;
      if (random.nextBoolean()) {
        bytes[8 + random.nextInt(end - 8)] ^= (byte) (1 << random.nextInt(8));
      } else {
        int at = (1 + random.nextInt(end / 8 - 1)) * 8;
        long number = NUMBERS[random.nextInt(NUMBERS.length)];
        message.putLong(at, random.nextInt(8) == 0 ? random.nextLong() : number);
      }
    }
  }

  private static Reading rows(Ring ring) {
    StructType type = RingTypes.of(ring);
    RingColumns columns =
        RingColumns.of(ring, type, IntStream.range(0, type.length()).toArray());
    UnsafeProjection values = UnsafeProjection.create(type);
    return (message, inPlace) -> {
      List<Message> messages = List.of(message);
      try (ColumnarBatch batch =
          inPlace ? columns.map(messages, () -> {}) : columns.copy(messages)) {
        Iterator<InternalRow> rows = batch.rowIterator();
        for (int i = 0; i < MOST_ROWS && rows.hasNext(); i++) {
          values.apply(rows.next());
        }
        if (batch.numRows() > 0) {
          values.apply(batch.getRow(batch.numRows() - 1));
        }
      }
    };
  }

  private static Reading vectors(Ring ring, RootAllocator allocator) {
    RingSchema schema = RingSchema.of(ring).orElseThrow();
    int[] all = IntStream.range(0, schema.stored().getFields().size()).toArray();
    BatchDecoder decoder = new BatchDecoder(schema, all, allocator);
    return (message, inPlace) -> {
      try (VectorSchemaRoot root =
          inPlace ? decoder.map(message, () -> {}) : decoder.copy(message)) {
        for (FieldVector vector : root.getFieldVectors()) {
          for (int i = 0; i < Math.min(root.getRowCount(), MOST_ROWS); i++) {
            String.valueOf(vector.getObject(i));
          }
          if (root.getRowCount() > 0) {
            String.valueOf(vector.getObject(root.getRowCount() - 1));
          }
        }
      }
    };
  }

  private static long direct() {
    return ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
        .filter(pool -> pool.getName().equals("direct"))
        .mapToLong(BufferPoolMXBean::getMemoryUsed)
        .sum();
  }

  private static long fullCollections() {
    return ManagementFactory.getGarbageCollectorMXBeans().stream()
        .filter(collector -> collector.getName().equals("MarkSweepCompact"))
        .mapToLong(GarbageCollectorMXBean::getCollectionCount)
        .sum();
  }
}
