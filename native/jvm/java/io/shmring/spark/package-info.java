/**
 * What users and Spark find by name ({@code format("shmring")}, the plugin, the session's
 * extensions), and the table and the scan behind the first of them. The packages below do the work;
 * {@link io.shmring.Ring} and its like touch shared memory.
 */
package io.shmring.spark;
