/**
 * Shared-memory rings from Java: {@link io.shmring.Ring}, {@link io.shmring.Producer} and {@link
 * io.shmring.Consumer}.
 *
 * <pre>{@code
 * try (Ring ring = Ring.attach("orders");
 *     Producer producer = ring.producer("feed")) {
 *   producer.push("hello".getBytes(UTF_8));
 * }
 *
 * try (Ring ring = Ring.attach("orders");
 *     Consumer consumer = ring.consumer("work", BranchOptions.EARLIEST);
 *     Lease lease = consumer.take()) {
 *   for (Message message : lease) {
 *     System.out.println(message.id() + ": " + message.length() + " bytes");
 *   }
 * }
 * }</pre>
 *
 * <p>The C library implements the protocol; this package translates. A use after close throws {@link
 * io.shmring.RingException}; it never touches memory that is no longer mapped.
 */
package io.shmring;
