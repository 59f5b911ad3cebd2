package io.shmring;

import java.util.OptionalLong;

/**
 * A participant of a ring.
 *
 * @param index its place in the ring
 * @param joinedNanos when it joined, in nanoseconds since 1970
 * @param hold the lowest sequence that a consumer holds
 * @param messages that it has published or taken
 * @param bytes of the messages that it has published
 * @param fullWaits how often it found no room
 */
public record Participant(
    int index,
    Role role,
    long pid,
    boolean alive,
    long joinedNanos,
    OptionalLong hold,
    long messages,
    long bytes,
    long fullWaits,
    String name) {

  /** The use of a participant; an unknown number in the ring's file counts as the first. */
  public enum Role {
    ATTACHED,
    PRODUCER,
    CONSUMER
  }

  static Participant of(int index, long[] words, String name) {
    OptionalLong hold = words[4] == -1 ? OptionalLong.empty() : OptionalLong.of(words[4]);
    return new Participant(
        index,
        words[0] == 1 ? Role.PRODUCER : words[0] == 2 ? Role.CONSUMER : Role.ATTACHED,
        words[1],
        words[2] != 0,
        words[3],
        hold,
        words[5],
        words[6],
        words[7],
        name);
  }
}
