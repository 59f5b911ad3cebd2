import java.io.File;
import java.nio.MappedByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.agrona.IoUtil;
import org.agrona.concurrent.AtomicBuffer;
import org.agrona.concurrent.UnsafeBuffer;
import org.agrona.concurrent.ringbuffer.ManyToOneRingBuffer;
import org.agrona.concurrent.ringbuffer.OneToOneRingBuffer;
import org.agrona.concurrent.ringbuffer.RingBuffer;
import org.agrona.concurrent.ringbuffer.RingBufferDescriptor;

/**
 * Agrona's ring buffers over a mapped file. Messages are claimed in place (`tryClaim`, which their
 * documentation calls the way without a copy), read with Aeron's limit of messages a read, and bounds
 * checks are off as in the scripts of Aeron's samples (benchmarks/jvm.py). Who finds nothing spins
 * with the CPU's hint, as BusySpinIdleStrategy does.
 */
abstract class AgronaPeer implements Peer {
  private static final int CAPACITY = 1 << 24; // a power of two; a message has at most an eighth
  private static final int MOST_MESSAGES = 256; // SampleConfiguration.FRAGMENT_COUNT_LIMIT of Aeron

  abstract RingBuffer ring(AtomicBuffer buffer);

  private static File file(Path folder, String channel) {
    return folder.resolve(channel).toFile();
  }

  @Override
  public Sender sender(Path folder, String channel, String how, int largest) throws Exception {
    int capacity = Math.max(CAPACITY, Integer.highestOneBit(largest) * 8);
    File made = file(folder, channel + ".new");
    MappedByteBuffer mapped =
        IoUtil.mapNewFile(made, capacity + RingBufferDescriptor.TRAILER_LENGTH, true);
    RingBuffer ring = ring(new UnsafeBuffer(mapped));
    Files.move(made.toPath(), file(folder, channel).toPath());
    return new Sender() {
      @Override
      public void send(long source, int length, int times) {
        for (int i = 0; i < times; i++) {
          int at = ring.tryClaim(1, length);
          while (at < 0) {
            Thread.onSpinWait();
            at = ring.tryClaim(1, length);
          }
          Tally.UNSAFE.copyMemory(source, ring.buffer().addressOffset() + at, length);
          ring.commit(at);
        }
      }

      @Override
      public int step() {
        return largest > 100_000 ? 1 : 1024;
      }

      @Override
      public void close() {
        IoUtil.unmap(mapped);
      }
    };
  }

  @Override
  public Receiver receiver(Path folder, String channel, int largest) throws Exception {
    File file = file(folder, channel);
    while (!file.exists()) {
      Thread.sleep(1);
    }
    MappedByteBuffer mapped = IoUtil.mapExistingFile(file, channel);
    RingBuffer ring = ring(new UnsafeBuffer(mapped));
    return new Receiver() {
      @Override
      public void poll(Tally tally) {
        int count =
            ring.read(
                (type, buffer, at, length) -> tally.take(buffer.addressOffset() + at, length),
                MOST_MESSAGES);
        if (count == 0) {
          Thread.onSpinWait();
        }
      }

      @Override
      public void close() {
        IoUtil.unmap(mapped);
      }
    };
  }

  public static final class OneToOne extends AgronaPeer {
    @Override
    RingBuffer ring(AtomicBuffer buffer) {
      return new OneToOneRingBuffer(buffer);
    }
  }

  public static final class ManyToOne extends AgronaPeer {
    @Override
    RingBuffer ring(AtomicBuffer buffer) {
      return new ManyToOneRingBuffer(buffer);
    }
  }
}
