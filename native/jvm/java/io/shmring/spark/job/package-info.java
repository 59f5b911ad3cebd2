/**
 * The common parts of reads and writes: options, the rings that they name, the place where a task
 * finds its ring, pauses of a task, and metrics.
 */
package io.shmring.spark.job;
