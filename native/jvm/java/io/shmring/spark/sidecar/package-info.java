/** Sidecars and rings beside each executor, looked after by a process that the plugin starts. */
package io.shmring.spark.sidecar;
