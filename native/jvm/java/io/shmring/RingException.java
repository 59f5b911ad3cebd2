package io.shmring;

import java.nio.charset.StandardCharsets;

/** An error of a ring, or of how it is used; the message says what to do. */
public class RingException extends RuntimeException {
  private final Status status;

  /** Thrown by the native code, whose text is UTF-8. */
  RingException(int code, byte[] message) {
    this(Status.of(code), new String(message, StandardCharsets.UTF_8));
  }

  public RingException(Status status, String message) {
    super(message);
    this.status = status;
  }

  /** Formats the message, as {@link String#format} does. */
  public RingException(Status status, String format, Object... values) {
    this(status, String.format(format, values));
  }

  public Status status() {
    return status;
  }
}
