import com.lmax.disruptor.BusySpinWaitStrategy;
import com.lmax.disruptor.EventFactory;
import com.lmax.disruptor.EventPoller;
import com.lmax.disruptor.InsufficientCapacityException;
import com.lmax.disruptor.RingBuffer;
import com.lmax.disruptor.dsl.ProducerType;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The LMAX Disruptor, between threads of one process: for reference. Events are made beforehand; a
 * reader polls (EventPoller), takes what is there at once, and sees every event. One producer, or the
 * ring for several; waiting is that of Pause, after BusySpinWaitStrategy, which its user guide has for
 * the lowest latency where each thread has a core, and YieldingWaitStrategy.
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

  private record Channel(RingBuffer<Event> ring, long memory) {}

  private final Map<String, Channel> channels = new ConcurrentHashMap<>();

  private static Channel make(boolean several) {
    long memory = Tally.UNSAFE.allocateMemory((long) EVENTS * Tally.MESSAGE);
    Tally.UNSAFE.setMemory(memory, (long) EVENTS * Tally.MESSAGE, (byte) 0);
    long[] next = {memory};
    EventFactory<Event> factory =
        () -> {
          next[0] += Tally.MESSAGE;
          return new Event(next[0] - Tally.MESSAGE);
        };
    ProducerType type = several ? ProducerType.MULTI : ProducerType.SINGLE;
    return new Channel(
        RingBuffer.create(type, factory, EVENTS, new BusySpinWaitStrategy()), memory);
  }

  @Override
  public Sender sender(Link link) {
    if (link.isFirst()) {
      channels.put(link.channel(), make(link.senders() > 1));
    }
    Channel channel = channels.get(link.channel());
    long own = link.isFirst() ? channel.memory : 0;
    return link.how().equals("batch")
        ? new Batches(channel.ring, own)
        : new Singles(channel.ring, own);
  }

  /** `memory` is zero where another sender frees it. */
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
        Pause.once();
      }
    }
  }

  private static void fill(Event event, long source, int length) {
    Tally.UNSAFE.copyMemory(source, event.address, length);
    event.length = length;
  }

  @Override
  public Receiver receiver(Link link) {
    RingBuffer<Event> ring = channels.get(link.channel()).ring;
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
          Pause.once();
        }
      }

      @Override
      public void close() {}
    };
  }
}
