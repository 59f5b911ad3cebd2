package io.shmring;

import java.util.OptionalLong;

/**
 * The state of a participant of a ring at one moment.
 *
 * @param index number of the participant's seat
 * @param joinedNanos time when the participant joined, in nanoseconds since 1970
 * @param hold the lowest sequence that the participant holds, if it is a consumer that holds any
 * @param messages number of messages that the participant has published or taken
 * @param bytes number of bytes that the participant has published
 * @param fullWaits number of times that the participant found no room
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

  /** The role of a participant. An unknown number in the ring's file counts as ATTACHED. */
  public enum Role {
    ATTACHED,
    PRODUCER,
    CONSUMER
  }
}
