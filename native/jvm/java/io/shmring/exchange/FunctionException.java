package io.shmring.exchange;

/**
 * Thrown when a sidecar does not run, does not answer in time, or raised an exception, and when a
 * sidecar or a Python worker gave a wrong answer.
 */
public final class FunctionException extends RuntimeException {
  public FunctionException(String format, Object... values) {
    super(String.format(format, values));
  }
}
