/**
 * Arrow record batches through rings, for programs that have Arrow's Java library on their class
 * path: {@link io.shmring.arrow.ArrowProducer} and {@link io.shmring.arrow.ArrowConsumer}.
 */
package io.shmring.arrow;
