import java.nio.file.Path;

/** A transport: its two ends, each in a process of its own, meet in a folder. */
interface Peer {
  /**
   * The end that sends; it makes what both need.
   *
   * @param how of the ways that the transport has: `one`, `offer`, `batch` or `block`
   * @param largest bytes of a message
   */
  Sender sender(Path folder, String channel, String how, int largest) throws Exception;

  /** The other end; it waits until the sender's is there. */
  Receiver receiver(Path folder, String channel, int largest) throws Exception;

  /** What the transport wants done now and then, while the sender waits or between its trips. */
  default void idle() {}

  interface Sender extends AutoCloseable {
    /** Copies so many messages of `length` bytes from `source` on; spins while there is no room. */
    void send(long source, int length, int times) throws Exception;

    /** How many messages are worth a look at the clock. */
    default int step() {
      return 1024;
    }

    /** How many messages there may be at all. */
    default long most() {
      return Long.MAX_VALUE;
    }

    /** What the other end adds up for one of them. */
    default long sum(long source, int length) {
      return Tally.sum(source, length);
    }

    @Override
    void close() throws Exception;
  }

  interface Receiver extends AutoCloseable {
    /** Reads the messages that are there, if any. */
    void poll(Tally tally) throws Exception;

    @Override
    void close() throws Exception;
  }
}
