/**
 * Batch reads, which take messages from a branch, and the parts that streaming reads share with them:
 * the options, the factory of readers, a task's ring, the metrics.
 */
package io.shmring.spark.read;
