/**
 * Spark's data source {@code shmring}: reads and writes rings inside the executors. A class per
 * role that Spark gives out; {@link io.shmring.Ring} and its like touch shared memory.
 */
package io.shmring.spark;
