package io.shmring.sidecar;

/** A sidecar does not run or does not answer in time, raised an exception, or gave a wrong answer. */
public final class SidecarException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public SidecarException(String message) {
    super(message);
  }
}
