package io.shmring;

/** A claim as its producer knows it. */
interface OpenClaim {
  /** The producer is being closed, which aborts the claim. */
  void end();
}
