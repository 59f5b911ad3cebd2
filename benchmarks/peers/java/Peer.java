import java.nio.file.Path;

/** A transport: its ends, each in a process of its own, meet in a folder. */
interface Peer {
  /**
   * Facts that an end is told of the other end.
   *
   * @param how way of the transport: `one`, `offer`, `batch` or `block`
   * @param largest bytes of a message
   */
  record Link(Path folder, String channel, String how, int largest) {
    Link back() {
      return new Link(folder, "back", "one", largest);
    }

    /** Returns when there is this file. */
    void await(Path path) throws InterruptedException {
      while (!path.toFile().exists()) {
        Thread.sleep(1);
      }
    }
  }

  /** An end that sends. */
  Sender sender(Link link) throws Exception;

  /** An end that reads; it waits until the sender is there. */
  Receiver receiver(Link link) throws Exception;

  /** Does the transport's periodic work, while the sender waits or between its trips. */
  default void idle() {}

  interface Sender extends AutoCloseable {
    /** Copies so many messages of `length` bytes from `source` on; waits while there is no room. */
    void send(long source, int length, int times) throws Exception;

    /** Lets the reader know that all has been sent. */
    default void end(long source) throws Exception {
      send(source, Tally.END, 1);
    }

    /** How many messages are worth a look at the clock. */
    default int step() {
      return 1024;
    }

    /** Returns the sum that the other end computes for one message. */
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
