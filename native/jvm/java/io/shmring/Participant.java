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
}
