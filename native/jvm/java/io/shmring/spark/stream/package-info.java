/**
 * Streaming reads: a branch that stands behind the last committed batch, tasks that read the messages
 * that the branch holds, and real-time mode. They use {@link io.shmring.spark.read}.
 */
package io.shmring.spark.stream;
