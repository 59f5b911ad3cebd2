package io.shmring;

import java.time.Duration;
import java.util.Comparator;
import java.util.List;

/** Waits for several consumers, of one ring or of many, by one thread. */
public final class Consumers {
  private Consumers() {}

  /**
   * Waits until one of the consumers has something: its next call takes a message, or says that the
   * stream has ended or that the branch was dropped. Take with a timeout of zero: consumers of one
   * branch may all be told of a message, and one of them gets it.
   *
   * <p>Other threads that use these consumers wait meanwhile; who closes one ends the wait. So does an
   * end of the stream that another thread is told of.
   *
   * @param timeout zero does not wait
   * @return those that have something, in the order given; none if time was up
   * @throws RingException if there is none to wait for, or one is closed
   */
  public static List<Consumer> ready(List<Consumer> consumers, Duration timeout)
      throws InterruptedException {
    return ready(consumers, timeout, WaitStrategy.DEFAULT);
  }

  /** Waits for the consumers in this way, whatever they were made with. */
  public static List<Consumer> ready(
      List<Consumer> consumers, Duration timeout, WaitStrategy wait) throws InterruptedException {
    long deadline = Deadline.in(timeout);
    List<Consumer> sorted = inOneOrder(consumers);
    boolean[] ready = new boolean[sorted.size()];
    long[] ends = sorted.stream().mapToLong(Consumer::ends).toArray();
    while (true) {
      Deadline.checkInterrupt();
      int answer = waitHolding(sorted, ends, 0, new long[sorted.size()], ready, deadline, wait);
      if (answer == 0) {
        return consumers.stream().filter(each -> ready[sorted.indexOf(each)]).toList();
      }
      if (answer == Outcome.TIMEOUT) {
        return List.of();
      }
    }
  }

  /** Threads that wait for the same ones take their monitors one after the other alike. */
  private static List<Consumer> inOneOrder(List<Consumer> consumers) {
    if (consumers.isEmpty()) {
      throw new RingException(Status.INVALID, "there is no consumer to wait for: give at least one");
    }
    consumers.forEach(Consumer::checkOpen); // the numbers of those that are open differ
    return consumers.stream()
        .distinct()
        .sorted(Comparator.comparingLong(Consumer::number))
        .toList();
  }

  private static int waitHolding(
      List<Consumer> consumers,
      long[] ends,
      int held,
      long[] handles,
      boolean[] ready,
      long deadline,
      WaitStrategy wait) {
    if (held == handles.length) {
      return Native.waitAny(handles, ready, deadline, wait.ordinal());
    }
    Consumer next = consumers.get(held);
    synchronized (next) {
      handles[held] = next.handle();
      if (next.ends() != ends[held]) { // told while this thread waited for the monitor
        ready[held] = true;
        return 0;
      }
      return waitHolding(consumers, ends, held + 1, handles, ready, deadline, wait);
    }
  }
}
