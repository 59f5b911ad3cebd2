/**
 * Batch reads, which take messages from a branch, and what streaming reads have in common with them:
 * the options, the factory of readers, the ring as a task reads it, the metrics.
 */
package io.shmring.spark.read;
