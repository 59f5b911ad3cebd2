import java.nio.file.Files;
import java.nio.file.Path;
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;
import net.openhft.chronicle.queue.ExcerptTailer;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueue;
import net.openhft.chronicle.queue.impl.single.SingleChronicleQueueBuilder;
import net.openhft.chronicle.queue.rollcycles.LargeRollCycles;
import net.openhft.chronicle.wire.DocumentContext;

/**
 * Chronicle Queue in a folder of /dev/shm. It is a log: nothing is overwritten, so a measurement ends
 * after MOST_BYTES at the latest. Its own documentation's settings: the roll cycle for many
 * messages (LARGE_DAILY), documents written and read in place, no resource tracing and the access
 * to the JDK that its page on Java 17 lists (benchmarks/jvm.py). A message has at most a quarter of
 * a block. Appenders take turns by the queue's lock; a tailer sees every message.
 */
public final class ChroniclePeer implements Peer {
  private static final int BLOCK = 1 << 26; // the default
  private static final long MOST_BYTES = 1L << 30;

  private static SingleChronicleQueue queue(Link link) {
    return SingleChronicleQueueBuilder.binary(link.folder().resolve(link.channel()))
        .blockSize(Math.max(BLOCK, 8L * link.largest()))
        .rollCycle(LargeRollCycles.LARGE_DAILY)
        .build();
  }

  private static Path made(Link link) {
    return link.folder().resolve(link.channel() + ".made");
  }

  @Override
  public Sender sender(Link link) throws Exception {
    if (!link.isFirst()) {
      link.await(made(link));
    }
    SingleChronicleQueue queue = queue(link);
    ExcerptAppender appender = queue.createAppender();
    if (link.isFirst()) {
      Files.createFile(made(link));
    }
    return new Sender() {
      @Override
      public void send(long source, int length, int times) {
        for (int i = 0; i < times; i++) {
          try (DocumentContext document = appender.writingDocument()) {
            Bytes<?> bytes = document.wire().bytes();
            bytes.ensureCapacity(bytes.writePosition() + length);
            Tally.UNSAFE.copyMemory(source, bytes.addressForWritePosition(), length);
            bytes.writeSkip(length);
          }
        }
      }

      @Override
      public int step() {
        return link.largest() > 100_000 ? 1 : 1024;
      }

      @Override
      public long most() {
        return MOST_BYTES / link.largest() / link.senders();
      }

      @Override
      public void close() {
        appender.close();
        queue.close();
      }
    };
  }

  @Override
  public Receiver receiver(Link link) throws Exception {
    link.await(made(link));
    ChronicleQueue queue = queue(link);
    ExcerptTailer tailer = queue.createTailer();
    return new Receiver() {
      @Override
      public void poll(Tally tally) {
        try (DocumentContext document = tailer.readingDocument()) {
          if (document.isPresent()) {
            Bytes<?> bytes = document.wire().bytes();
            tally.take(bytes.addressForRead(bytes.readPosition()), (int) bytes.readRemaining());
          } else {
            Pause.once();
          }
        }
      }

      @Override
      public void close() {
        tailer.close();
        queue.close();
      }
    };
  }
}
