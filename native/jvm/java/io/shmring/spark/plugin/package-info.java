/** What the plugin starts on an executor: the process that keeps its rings and sidecars. */
package io.shmring.spark.plugin;
