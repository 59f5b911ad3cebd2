/**
 * The classes that users and Spark find by name ({@code format("shmring")}, the plugin, the session's
 * extensions), and the table and the scan behind {@code format("shmring")}. The packages below do the
 * work; {@link io.shmring.Ring} and the other classes of its package use shared memory.
 */
package io.shmring.spark;
