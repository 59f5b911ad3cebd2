/**
 * Spark's data source {@code shmring}: reads and writes rings inside the executors. A class per
 * role that Spark gives out; {@link io.shmring.Ring} is what touches shared memory.
 */
package io.shmring.spark;
