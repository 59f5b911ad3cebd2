package io.shmring;

import java.nio.charset.StandardCharsets;

/** An error of a ring, or of its use. The message says what to do. */
public class RingException extends RuntimeException {
  private final Status status;

  /** Makes an error of the native code, which calls this constructor with a text in UTF-8. */
  RingException(int code, byte[] message) {
    this(Status.of(code), new String(message, StandardCharsets.UTF_8));
  }

  public RingException(Status status, String message) {
    super(message);
    this.status = status;
  }

  /** Makes an error with a message that is formatted as by {@link String#format}. */
  public RingException(Status status, String format, Object... values) {
    this(status, String.format(format, values));
  }

  public Status status() {
    return status;
  }
}
