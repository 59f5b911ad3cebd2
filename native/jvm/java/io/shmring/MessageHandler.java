package io.shmring;

/** Receives the messages of {@link Consumer#drain(MessageHandler, int)}. */
@FunctionalInterface
public interface MessageHandler {
  /**
   * Processes a message.
   *
   * @param message the same object for every message; it can be used until the method returns, in
   *     this thread only
   */
  void onMessage(MessageView message);
}
