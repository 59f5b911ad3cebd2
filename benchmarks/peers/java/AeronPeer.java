import io.aeron.Aeron;
import io.aeron.FragmentAssembler;
import io.aeron.Image;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.BufferClaim;
import io.aeron.logbuffer.FragmentHandler;
import java.nio.file.Files;
import java.nio.file.Path;
import org.agrona.concurrent.AgentInvoker;
import org.agrona.concurrent.UnsafeBuffer;

/**
 * Aeron IPC between processes. Settings of Aeron's samples (EmbeddedExclusiveIpcThroughput and the
 * scripts beside it): an exclusive publication, `image.poll` of 256 fragments, no bounds checks,
 * files that are not sparse and touched beforehand. The samples' driver spins on a core of its own,
 * which two cores have not: here the sender runs it (ThreadingMode.INVOKER, which Aeron has for
 * that), while it waits for room and now and then. A claim, and a fragment, has at most an MTU, so
 * that is as large as it may be.
 */
public final class AeronPeer implements Peer {
  private static final int TERM = 1 << 23; // three of them make a log: 25 MB
  private static final int MTU = 65_504;
  private static final int MOST_FRAGMENTS = 256; // SampleConfiguration.FRAGMENT_COUNT_LIMIT

  private Ends ends; // this process's, while there is a measurement

  /** A client, and the driver where this process has it. */
  private static final class Ends {
    final MediaDriver driver;
    final Aeron aeron;
    final AgentInvoker invoker;
    int users;

    Ends(Path folder, boolean drives) throws Exception {
      String directory = folder.resolve("aeron").toString();
      if (drives) {
        driver =
            MediaDriver.launch(
                new MediaDriver.Context()
                    .threadingMode(ThreadingMode.INVOKER)
                    .termBufferSparseFile(false)
                    .aeronDirectoryName(directory)
                    .dirDeleteOnStart(true)
                    .dirDeleteOnShutdown(true));
        invoker = driver.sharedAgentInvoker();
      } else {
        while (!Files.exists(folder.resolve("aeron/cnc.dat"))) {
          Thread.sleep(1);
        }
        driver = null;
        invoker = null;
      }
      aeron =
          Aeron.connect(
              new Aeron.Context()
                  .aeronDirectoryName(directory)
                  .driverAgentInvoker(invoker)
                  .useConductorAgentInvoker(drives)
                  .preTouchMappedMemory(true));
    }

    void drive() {
      if (invoker != null) {
        invoker.invoke();
        aeron.conductorAgentInvoker().invoke();
      }
    }
  }

  @Override
  public void idle() {
    if (ends != null) {
      ends.drive();
    }
  }

  private static String channel(Link link) {
    int term = Math.max(TERM, Integer.highestOneBit(link.largest()) * 8);
    return "aeron:ipc?term-length=" + term + "|mtu=" + MTU;
  }

  private static boolean isThere(Link link) {
    return link.channel().equals("there");
  }

  private static int stream(Link link) {
    return isThere(link) ? 10 : 11;
  }

  private Ends enter(Path folder, boolean drives) throws Exception {
    if (ends == null) {
      ends = new Ends(folder, drives);
    }
    ends.users++;
    return ends;
  }

  private void leave() {
    if (--ends.users == 0) {
      ends.aeron.close();
      if (ends.driver != null) {
        ends.driver.close();
      }
      ends = null;
    }
  }

  @Override
  public Sender sender(Link link) throws Exception {
    Ends here = enter(link.folder(), isThere(link));
    Publication out = here.aeron.addExclusivePublication(channel(link), stream(link));
    return link.how().equals("offer") || link.largest() > out.maxPayloadLength()
        ? new Offering(here, out, link.largest())
        : new Claiming(here, out);
  }

  private abstract class AeronSender implements Sender {
    final Ends here;
    final Publication out;

    AeronSender(Ends here, Publication out) {
      this.here = here;
      this.out = out;
    }

    final void waitForRoom() {
      here.drive();
      Thread.onSpinWait();
    }

    @Override
    public final void close() {
      out.close();
      leave();
    }
  }

  private final class Claiming extends AeronSender {
    private final BufferClaim claim = new BufferClaim();

    Claiming(Ends here, Publication out) {
      super(here, out);
    }

    @Override
    public void send(long source, int length, int times) {
      for (int i = 0; i < times; i++) {
        while (out.tryClaim(length, claim) < 0) {
          waitForRoom();
        }
        long to = claim.buffer().addressOffset() + claim.offset();
        Tally.UNSAFE.copyMemory(source, to, length);
        claim.commit();
      }
      if (times > 1) {
        here.drive();
      }
    }
  }

  private final class Offering extends AeronSender {
    private final UnsafeBuffer data = new UnsafeBuffer();
    private final int step;

    Offering(Ends here, Publication out, int largest) {
      super(here, out);
      step = largest > 100_000 ? 1 : 1024;
    }

    @Override
    public void send(long source, int length, int times) {
      data.wrap(source, length);
      for (int i = 0; i < times; i++) {
        while (out.offer(data, 0, length) < 0) {
          waitForRoom();
        }
      }
      if (times > 1) {
        here.drive();
      }
    }

    @Override
    public int step() {
      return step;
    }
  }

  @Override
  public Receiver receiver(Link link) throws Exception {
    Ends here = enter(link.folder(), !isThere(link));
    Subscription subscription = here.aeron.addSubscription(channel(link), stream(link));
    int largest = link.largest();
    return new Receiver() {
      private Image image;
      private Tally tally;
      private final FragmentHandler each =
          (buffer, at, length, header) -> tally.take(buffer.addressOffset() + at, length);
      // A message of several fragments is put together in a buffer of the assembler.
      private final FragmentHandler handler =
          largest > MTU - 32 ? new FragmentAssembler(each, largest, true) : each;

      @Override
      public void poll(Tally tally) {
        this.tally = tally;
        if (image == null) {
          here.drive();
          image = subscription.imageCount() == 0 ? null : subscription.imageAtIndex(0);
        } else if (image.poll(handler, MOST_FRAGMENTS) == 0) {
          Thread.onSpinWait();
        }
      }

      @Override
      public void close() {
        subscription.close();
        leave();
      }
    };
  }
}
