import com.lmax.disruptor.BusySpinWaitStrategy;
import com.lmax.disruptor.EventPoller;
import com.lmax.disruptor.InsufficientCapacityException;
import com.lmax.disruptor.RingBuffer;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The LMAX Disruptor, between two threads of one process: for reference. One producer, the busy spin
 * that its user guide has for the lowest latency where each thread has a core, events made
 * beforehand; the reader polls (EventPoller), and takes what is there at once.
 */
public final class DisruptorPeer implements Peer {
  private static final int EVENTS = 65_536;
  private static final int BATCH = 256;

  /** A message in memory that was allocated in one piece. */
  private static final class Event {
    final long address;
    int length;

    Event(long address) {
      this.address = address;
    }
  }

  private final Map<String, RingBuffer<Event>> rings = new ConcurrentHashMap<>();

  @Override
  public Sender sender(Path folder, String channel, String how, int largest) {
    long memory = Tally.UNSAFE.allocateMemory((long) EVENTS * Tally.MESSAGE);
    Tally.UNSAFE.setMemory(memory, (long) EVENTS * Tally.MESSAGE, (byte) 0);
    long[] next = {memory};
    RingBuffer<Event> ring =
        RingBuffer.createSingleProducer(
            () -> {
              next[0] += Tally.MESSAGE;
              return new Event(next[0] - Tally.MESSAGE);
            },
            EVENTS,
            new BusySpinWaitStrategy());
    rings.put(channel, ring);
    return how.equals("batch") ? new Batches(ring, memory) : new Singles(ring, memory);
  }

  private record Singles(RingBuffer<Event> ring, long memory) implements Sender {
    @Override
    public void send(long source, int length, int times) {
      for (int i = 0; i < times; i++) {
        long sequence = claim(ring, 1);
        fill(ring.get(sequence), source, length);
        ring.publish(sequence);
      }
    }

    @Override
    public void close() {
      Tally.UNSAFE.freeMemory(memory);
    }
  }

  /** Its messages are batches of BATCH, each of which is as many events. */
  private record Batches(RingBuffer<Event> ring, long memory) implements Sender {
    @Override
    public void send(long source, int length, int times) {
      int events = length == Tally.END ? 1 : BATCH;
      for (int i = 0; i < times; i++) {
        long last = claim(ring, events);
        for (int k = 0; k < events; k++) {
          Event event = ring.get(last - events + 1 + k);
          fill(event, source + (long) k * Tally.MESSAGE, Math.min(length, Tally.MESSAGE));
        }
        ring.publish(last - events + 1, last);
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

    @Override
    public void close() {
      Tally.UNSAFE.freeMemory(memory);
    }
  }

  /** As `next()`, which parks while the ring is full. */
  private static long claim(RingBuffer<Event> ring, int events) {
    while (true) {
      try {
        return ring.tryNext(events);
      } catch (InsufficientCapacityException full) {
        Thread.onSpinWait();
      }
    }
  }

  private static void fill(Event event, long source, int length) {
    Tally.UNSAFE.copyMemory(source, event.address, length);
    event.length = length;
  }

  @Override
  public Receiver receiver(Path folder, String channel, int largest) {
    RingBuffer<Event> ring = rings.get(channel);
    EventPoller<Event> poller = ring.newPoller();
    ring.addGatingSequences(poller.getSequence());
    return new Receiver() {
      private Tally tally;
      private final EventPoller.Handler<Event> handler =
          (event, sequence, last) -> {
            tally.take(event.address, event.length);
            return true;
          };

      @Override
      public void poll(Tally tally) throws Exception {
        this.tally = tally;
        if (poller.poll(handler) != EventPoller.PollState.PROCESSING) {
          Thread.onSpinWait();
        }
      }

      @Override
      public void close() {}
    };
  }
}
