package io.shmring.sidecar;

/** A sidecar is not there or not to be waited for, raised an exception, or answered with something else. */
public final class SidecarException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public SidecarException(String message) {
    super(message);
  }
}
