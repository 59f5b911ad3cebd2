package io.shmring.sidecar;

/**
 * The timeouts of a client, in seconds as the user gave them.
 *
 * @param timeout for any answer of a living sidecar, also if its workers are still loading or it has
 *     no room for another client
 * @param connectTimeout for a sidecar that does not run (yet, or any more)
 */
public record Timeouts(double timeout, double connectTimeout) {
  long timeoutNanos() {
    return nanos(timeout);
  }

  long connectNanos() {
    return nanos(connectTimeout);
  }

  private static long nanos(double seconds) {
    return (long) Math.min(seconds * 1e9, Long.MAX_VALUE / 4);
  }

  String timeoutText() {
    return text(timeout);
  }

  String connectText() {
    return text(connectTimeout);
  }

  private static String text(double seconds) {
    return seconds == Math.rint(seconds) ? Long.toString((long) seconds) : Double.toString(seconds);
  }
}
