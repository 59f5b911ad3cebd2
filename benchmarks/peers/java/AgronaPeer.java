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
 * checks are off as in the scripts of Aeron's samples (benchmarks/jvm.py). A ring has one reader.
 */
abstract class AgronaPeer implements Peer {
  private static final int CAPACITY = 1 << 24; // a power of two; a message has at most an eighth
  private static final int MOST_MESSAGES = 256; // SampleConfiguration.FRAGMENT_COUNT_LIMIT of Aeron

  abstract RingBuffer ring(AtomicBuffer buffer);

  private static MappedByteBuffer make(Link link) throws Exception {
    int capacity = Math.max(CAPACITY, Integer.highestOneBit(link.largest()) * 8);
    Path made = link.folder().resolve(link.channel() + ".new");
    MappedByteBuffer mapped =
        IoUtil.mapNewFile(made.toFile(), capacity + RingBufferDescriptor.TRAILER_LENGTH, true);
    Files.move(made, link.folder().resolve(link.channel()));
    return mapped;
  }

  private static MappedByteBuffer map(Link link) throws Exception {
    Path path = link.folder().resolve(link.channel());
    link.await(path);
    return IoUtil.mapExistingFile(path.toFile(), link.channel());
  }

  @Override
  public Sender sender(Link link) throws Exception {
    MappedByteBuffer mapped = link.isFirst() ? make(link) : map(link);
    RingBuffer ring = ring(new UnsafeBuffer(mapped));
    return new Sender() {
      @Override
      public void send(long source, int length, int times) {
        for (int i = 0; i < times; i++) {
          int at = ring.tryClaim(1, length);
          while (at < 0) {
            Pause.once();
            at = ring.tryClaim(1, length);
          }
          Tally.UNSAFE.copyMemory(source, ring.buffer().addressOffset() + at, length);
          ring.commit(at);
        }
      }

      @Override
      public int step() {
        return link.largest() > 100_000 ? 1 : 1024;
      }

      @Override
      public void close() {
        IoUtil.unmap(mapped);
      }
    };
  }

  @Override
  public Receiver receiver(Link link) throws Exception {
    MappedByteBuffer mapped = map(link);
    RingBuffer ring = ring(new UnsafeBuffer(mapped));
    return new Receiver() {
      @Override
      public void poll(Tally tally) {
        int count =
            ring.read(
                (type, buffer, at, length) -> tally.take(buffer.addressOffset() + at, length),
                MOST_MESSAGES);
        if (count == 0) {
          Pause.once();
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
