package io.shmring;

/** A claim, as its producer sees it. */
interface OpenClaim {
  /** Ends the claim: the producer is being closed, which aborts it. */
  void end();
}
