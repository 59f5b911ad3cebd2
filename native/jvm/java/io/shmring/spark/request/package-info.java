/**
 * A task's requests to a sidecar: how its rows become batches, which columns an answer must have, and
 * what comes of it.
 */
package io.shmring.spark.request;
