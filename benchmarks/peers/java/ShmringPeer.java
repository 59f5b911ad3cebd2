import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.Lease;
import io.shmring.Message;
import io.shmring.Producer;
import io.shmring.Ring;
import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;

/** This ring, by its Java API and with its defaults; it is polled, as the others are. */
public final class ShmringPeer implements Peer {
  private static final int SLOTS = 65_536; // 19.7 MB
  private static final int SLOTS_OF_LARGE = 262_144; // 79 MB
  private static final int MOST_MESSAGES = 256; // as Aeron's and Agrona's readers

  @Override
  public Sender sender(Path folder, String channel, String how, int largest) throws Exception {
    String name = folder.resolve(channel).toString();
    Ring.create(name + ".new", largest > 1 << 23 ? SLOTS_OF_LARGE : SLOTS, new byte[0]);
    Files.move(Path.of(name + ".new"), Path.of(name));
    Ring ring = Ring.attach(name);
    Producer producer = ring.producer("bench");
    return new Sender() {
      private byte[] data = {};

      @Override
      public void send(long source, int length, int times) throws Exception {
        if (data.length != length) {
          data = new byte[length];
          Tally.UNSAFE.copyMemory(
              null, source, data, sun.misc.Unsafe.ARRAY_BYTE_BASE_OFFSET, length);
        }
        for (int i = 0; i < times; i++) {
          producer.push(data);
        }
      }

      @Override
      public int step() {
        return largest > 100_000 ? 1 : 1024;
      }

      @Override
      public void close() {
        producer.close();
        ring.close();
      }
    };
  }

  @Override
  public Receiver receiver(Path folder, String channel, int largest) throws Exception {
    Path path = folder.resolve(channel);
    while (!Files.exists(path)) {
      Thread.sleep(1);
    }
    Ring ring = Ring.attach(path.toString());
    Consumer consumer = ring.consumer("bench", BranchOptions.EARLIEST);
    ByteBuffer buffer = ByteBuffer.allocateDirect(largest);
    long address = address(buffer);
    return new Receiver() {
      @Override
      public void poll(Tally tally) throws Exception {
        Optional<Lease> lease = consumer.poll(MOST_MESSAGES, Long.MAX_VALUE, Duration.ZERO);
        if (lease.isEmpty()) {
          Thread.onSpinWait();
          return;
        }
        try (Lease held = lease.get()) {
          for (Message message : held) {
            int length = (int) message.length();
            buffer.clear().limit(length);
            message.copyTo(0, buffer);
            tally.take(address, length);
          }
        }
      }

      @Override
      public void close() {
        consumer.close();
        ring.close();
      }
    };
  }

  private static long address(ByteBuffer buffer) throws ReflectiveOperationException {
    return Tally.UNSAFE.getLong(
        buffer, Tally.UNSAFE.objectFieldOffset(Buffer.class.getDeclaredField("address")));
  }
}
