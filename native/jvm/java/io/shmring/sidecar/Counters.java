package io.shmring.sidecar;

/**
 * What a client has done for somebody in some time; times are those that it spent waiting, and that
 * the sidecar's workers were at its requests.
 */
public final class Counters {
  private long requests;
  private long requestBytes;
  private long answers;
  private long answerBytes;
  private long retries;
  private long roomNanos;
  private long answerNanos;
  private long workedNanos;

  void sent(long bytes) {
    requests++;
    requestBytes += bytes;
  }

  void answered(long bytes, long worked) {
    answers++;
    answerBytes += bytes;
    workedNanos += worked;
  }

  void retried() {
    retries++;
  }

  void waitedForRoom(long nanos) {
    roomNanos += nanos;
  }

  void waitedForAnswers(long nanos) {
    answerNanos += nanos;
  }

  public long requests() {
    return requests;
  }

  public long requestBytes() {
    return requestBytes;
  }

  public long answers() {
    return answers;
  }

  public long answerBytes() {
    return answerBytes;
  }

  /** Requests that went to another worker, because one had died or the sidecar was started anew. */
  public long retries() {
    return retries;
  }

  public long roomNanos() {
    return roomNanos;
  }

  public long answerNanos() {
    return answerNanos;
  }

  public long workedNanos() {
    return workedNanos;
  }
}
