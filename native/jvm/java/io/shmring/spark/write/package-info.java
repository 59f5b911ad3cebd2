/**
 * Writes of batch jobs and of streaming queries: tasks stage messages in files beside the ring, and
 * the driver's commit publishes them.
 */
package io.shmring.spark.write;
