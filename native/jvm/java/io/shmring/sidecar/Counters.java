package io.shmring.sidecar;

/**
 * Counters of a client for one task. The times are those that the client waited, and that the
 * sidecar's workers worked on its requests.
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

  /** Requests sent to another worker, because one had died or the sidecar was restarted. */
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
