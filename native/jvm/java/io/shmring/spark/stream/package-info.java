/**
 * Streaming reads: a branch that stands behind the last committed batch, tasks that look at what the
 * branch holds, and real-time mode. Reads by the means of {@link io.shmring.spark.read}.
 */
package io.shmring.spark.stream;
