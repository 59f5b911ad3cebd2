package io.shmring;

/**
 * The stream has ended: the branch has come to an end marker. Each consumer that had joined by then
 * is told once, after what it took before; its next call goes on behind the end.
 */
public final class EndOfStreamException extends RuntimeException {
  private static final long serialVersionUID = 1;

  EndOfStreamException(String ring) {
    super(String.format("ring \"%s\": the stream has ended", ring));
  }
}
