/**
 * The client of a sidecar: sends record batches, takes the answers in order, and looks whether
 * anybody is there. What is said stands in src/shmring/sidecars/wire.py.
 */
package io.shmring.sidecar;
