/**
 * The client of a sidecar: sends record batches, takes the answers in order, and watches whether the
 * sidecar lives. src/shmring/sidecars/wire.py describes the messages.
 */
package io.shmring.sidecar;
