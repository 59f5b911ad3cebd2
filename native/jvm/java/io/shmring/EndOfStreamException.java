package io.shmring;

/**
 * The stream has ended: the branch has reached an end marker. Each consumer that had joined by then
 * gets this once, after the messages that it took before; its next call continues after the end.
 */
public final class EndOfStreamException extends RuntimeException {
  EndOfStreamException(String ring) {
    super(String.format("ring \"%s\": the stream has ended", ring));
  }
}
