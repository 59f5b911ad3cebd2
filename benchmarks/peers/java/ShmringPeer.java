import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.MessageHandler;
import io.shmring.Producer;
import io.shmring.Ring;
import java.nio.file.Files;
import java.nio.file.Path;
import sun.misc.Unsafe;

/** This ring, by its Java API and with its defaults. It is polled, as the others are. */
public final class ShmringPeer implements Peer {
  private static final int SLOTS = 65_536; // 19.7 MB
  private static final int SLOTS_OF_LARGE = 262_144; // 79 MB
  private static final int BATCH = 256;
  private static final int MOST_MESSAGES = 256; // the limit of Aeron's and Agrona's readers

  private static byte[] copy(long source, int length) {
    byte[] data = new byte[length];
    Tally.UNSAFE.copyMemory(null, source, data, Unsafe.ARRAY_BYTE_BASE_OFFSET, length);
    return data;
  }

  private static Path path(Link link) {
    return link.folder().resolve(link.channel());
  }

  @Override
  public Sender sender(Link link) throws Exception {
    String name = path(link).toString();
    int slots = link.largest() > 1 << 23 ? SLOTS_OF_LARGE : SLOTS;
    Ring.create(name + ".new", slots, new byte[0]);
    Files.move(Path.of(name + ".new"), path(link));
    Ring ring = Ring.attach(name);
    Producer producer = ring.producer("bench");
    return link.how().equals("batch")
        ? new Batches(ring, producer)
        : new Singles(ring, producer, link);
  }

  private abstract static class Ours implements Sender {
    final Ring ring;
    final Producer producer;

    Ours(Ring ring, Producer producer) {
      this.ring = ring;
      this.producer = producer;
    }

    @Override
    public final void close() {
      producer.close();
      ring.close();
    }
  }

  private static final class Singles extends Ours {
    private final Link link;
    private byte[] data = {};

    Singles(Ring ring, Producer producer, Link link) {
      super(ring, producer);
      this.link = link;
    }

    @Override
    public void send(long source, int length, int times) throws Exception {
      if (data.length != length) {
        data = copy(source, length);
      }
      for (int i = 0; i < times; i++) {
        producer.push(data);
      }
    }

    @Override
    public int step() {
      return link.largest() > 100_000 ? 1 : 1024;
    }
  }

  /** Its messages are batches of BATCH. */
  private static final class Batches extends Ours {
    private byte[] data = {};

    Batches(Ring ring, Producer producer) {
      super(ring, producer);
    }

    @Override
    public void send(long source, int length, int times) throws Exception {
      if (data.length != length) {
        data = copy(source, length);
      }
      int count = length == Tally.END ? 1 : BATCH;
      int each = length / count;
      for (int i = 0; i < times; i++) {
        producer.pushMany(
            count,
            (index, room) -> {
              room.put(0, data, index * each, each);
              return each;
            });
      }
    }

    @Override
    public int step() {
      return 8;
    }

    @Override
    public long sum(long source, int length) {
      return BATCH * Tally.sum(source, Tally.MESSAGE); // they are the same
    }
  }

  @Override
  public Receiver receiver(Link link) throws Exception {
    link.await(path(link));
    Ring ring = Ring.attach(path(link).toString());
    Consumer consumer = ring.consumer("bench", BranchOptions.EARLIEST);
    return new Receiver() {
      private Tally tally;
      private final MessageHandler handler =
          message -> tally.take(message.address(), (int) message.length()); // like all peers

      @Override
      public void poll(Tally tally) throws Exception {
        this.tally = tally;
        if (consumer.drain(handler, MOST_MESSAGES) == 0) {
          Thread.onSpinWait();
        }
      }

      @Override
      public void close() {
        consumer.close();
        ring.close();
      }
    };
  }
}
