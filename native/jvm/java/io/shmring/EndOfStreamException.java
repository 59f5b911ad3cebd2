package io.shmring;

/**
 * Thrown when the branch has reached an end marker. Each consumer that had joined before gets this
 * exception once, after the messages that it took before the marker; its next call continues after
 * the marker.
 */
public final class EndOfStreamException extends RuntimeException {
  EndOfStreamException(String ring) {
    super(String.format("ring \"%s\": the stream has ended", ring));
  }
}
