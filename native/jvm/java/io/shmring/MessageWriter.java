package io.shmring;

/** Writes the messages of {@link Producer#pushMany(int, MessageWriter)} where they will be read. */
@FunctionalInterface
public interface MessageWriter {
  /**
   * Writes a message.
   *
   * @param index of the message, from zero
   * @param room the same object each time; it can be used until this returns, in this thread only
   * @return how many bytes the message has, from the beginning of the room
   */
  int write(int index, MessageRoom room);
}
