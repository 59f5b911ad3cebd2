/**
 * The operators of a plan that send rows straight from the executor's JVM to a sidecar, and the
 * strategy that plans them.
 */
package io.shmring.spark.sidecar;
