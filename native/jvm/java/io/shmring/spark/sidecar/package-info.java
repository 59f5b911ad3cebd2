/**
 * Sidecars: the process that looks after those of an executor, and the operator that sends rows to
 * them straight from the executor's JVM.
 */
package io.shmring.spark.sidecar;
