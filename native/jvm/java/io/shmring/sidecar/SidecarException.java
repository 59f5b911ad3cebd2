package io.shmring.sidecar;

/**
 * Thrown when a sidecar does not run, does not answer in time, raised an exception, or gave a wrong
 * answer.
 */
public final class SidecarException extends RuntimeException {
  public SidecarException(String format, Object... values) {
    super(String.format(format, values));
  }
}
