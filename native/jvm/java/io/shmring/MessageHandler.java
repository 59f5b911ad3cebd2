package io.shmring;

/** Is given messages by {@link Consumer#drain(MessageHandler, int)}. */
@FunctionalInterface
public interface MessageHandler {
  /**
   * Deals with a message.
   *
   * @param message the same object each time; it can be used until this returns, in this thread only
   */
  void onMessage(MessageView message);
}
