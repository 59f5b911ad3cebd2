package io.shmring;

/** Writes the messages of {@link Producer#pushMany(int, MessageWriter)} in place. */
@FunctionalInterface
public interface MessageWriter {
  /**
   * Writes a message.
   *
   * @param index number of the message in the call, from zero
   * @param room the same object for every message; it can be used until the method returns, in this
   *     thread only
   * @return the length of the message in bytes, from the beginning of the room
   */
  int write(int index, MessageRoom room);
}
