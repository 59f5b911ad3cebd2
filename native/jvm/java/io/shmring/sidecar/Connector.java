package io.shmring.sidecar;

import io.shmring.RingException;
import io.shmring.Status;
import java.util.concurrent.ThreadLocalRandom;

/** How a client joins a sidecar's ring: at once, or when the sidecar has started or has room. */
final class Connector {
  private static final long PAUSE_MILLIS = 50;
  private static final long LONGEST_PAUSE_MILLIS = 1000;

  private Connector() {}

  /**
   * Joins as a client, and waits for room.
   *
   * @throws SidecarException if there is no sidecar of this name, or it has no room for this client
   */
  static RequestRing await(
      String sidecar, Client.Timeouts timeouts, SidecarClient.TaskCheck taskCheck)
      throws InterruptedException {
    long begun = System.nanoTime();
    long pause = PAUSE_MILLIS;
    while (true) {
      taskCheck.check();
      long waited = System.nanoTime() - begun;
      try {
        return RequestRing.enter(sidecar);
      } catch (RingException error) {
        if (error.status() == Status.NOT_FOUND) {
          checkConnectTimeout(sidecar, timeouts, waited);
          Thread.sleep(PAUSE_MILLIS);
        } else if (error.status() == Status.LIMIT) {
          checkTimeout(sidecar, timeouts, waited);
          Thread.sleep(ThreadLocalRandom.current().nextLong(pause / 2, pause + 1));
          pause = Math.min(2 * pause, LONGEST_PAUSE_MILLIS);
        } else {
          throw error;
        }
      }
    }
  }

  private static void checkConnectTimeout(String sidecar, Client.Timeouts timeouts, long waited) {
    if (waited >= timeouts.connectNanos()) {
      throw new SidecarException(
          String.format(
              "no sidecar \"%s\" on this host (waited %s s, connect_timeout=..., and it did not start); %s;"
                  + " start it with `shmring sidecar module:function --name %s`, or see in the log of"
                  + " what should have started it why it is not there",
              sidecar, timeouts.connectText(), RequestRing.others(), sidecar));
    }
  }

  private static void checkTimeout(String sidecar, Client.Timeouts timeouts, long waited) {
    if (waited >= timeouts.timeoutNanos()) {
      throw new SidecarException(
          String.format(
              "sidecar \"%s\" has had no room for another client for %s s: %s; let fewer tasks run"
                  + " at a time on a host, share their work between sidecars of several names, or"
                  + " wait longer (timeout=...)",
              sidecar, timeouts.timeoutText(), RequestRing.crowd(sidecar)));
    }
  }
}
