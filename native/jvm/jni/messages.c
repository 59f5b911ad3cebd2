/* Native methods for producers and consumers. Java writes messages into claimed slots by address; Java checks the
 * bounds of these writes itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "glue.h"

NATIVE(jlong, openProducer, jlong ring, jbyteArray name)
{
	shmring_producer *producer = NULL;
	struct text text;

	if (text_load(env, name, &text))
		(void)answer(env, shmring_producer_open(from_handle(ring), text.chars, &producer));
	return to_handle(producer);
}

NATIVE(void, closeProducer, jlong producer)
{
	shmring_producer_close(from_handle(producer));
}

NATIVE(void, interruptProducer, jlong producer)
{
	shmring_producer_interrupt(from_handle(producer), true);
}

NATIVE(jlong, slotsFor, jlong length, jboolean aligned)
{
	return (jlong)shmring_slots_for((uint64_t)length, aligned);
}

NATIVE(jlong, next, jlong producer, jint slots)
{
	int64_t sequence = shmring_next(from_handle(producer), (uint32_t)slots);

	return sequence < 0 ? answer(env, (int)sequence) : sequence;
}

/* Publishes the claim as one or more messages, which become readable together. `words` has three numbers for each
 * message: its number of slots, its length in bytes, and the offset in its first slot at which it begins. */
NATIVE(jint, publish, jlong producer, jintArray words, jint kind)
{
	jsize count = (*env)->GetArrayLength(env, words) / 3;
	struct shmring_part *parts = malloc((size_t)count * sizeof *parts);
	int status;

	if (!parts) {
		throw_status(env, SHMRING_E_NO_MEMORY, "out of memory");
		return SHMRING_E_NO_MEMORY;
	}
	for (jsize i = 0; i < count; i++) {
		jint part[3];

		(*env)->GetIntArrayRegion(env, words, 3 * i, 3, part);
		parts[i] = (struct shmring_part){
		    .slots = (uint32_t)part[0],
		    .length = (uint32_t)part[1],
		    .shift = (uint8_t)part[2],
		    .kind = (uint8_t)kind,
		};
	}
	status = answer(env, shmring_publish_parts(from_handle(producer), parts, (uint32_t)count));
	free(parts);
	return status;
}

NATIVE(jint, abort, jlong producer)
{
	return answer(env, shmring_abort(from_handle(producer)));
}

/* Pushes one message of at most one slot, whose bytes lie outside of Java's heap. */
NATIVE(jlong, push, jlong producer, jlong data, jint length, jint kind)
{
	uint64_t id;
	int status = shmring_push(from_handle(producer), from_handle(data), (size_t)length, (uint8_t)kind, &id);

	return status ? answer(env, status) : (jlong)id;
}

#define MOST_AT_ONCE (1 << 20)

/* Copies the bytes of an array in parts, so that a garbage collection, which cannot begin while a part is copied,
 * waits only a short time. */
static void array_copy(JNIEnv *env, jbyteArray from, jint length, void *to)
{
	for (jint copied = 0; copied < length;) {
		jint part = length - copied < MOST_AT_ONCE ? length - copied : MOST_AT_ONCE;

		(*env)->GetByteArrayRegion(env, from, copied, part, (jbyte *)to + copied);
		copied += part;
	}
}

/* Pushes one message of several slots, from an array in Java's heap. */
NATIVE(jlong, pushLarge, jlong ring, jlong producer, jbyteArray data, jint kind)
{
	jsize length = (*env)->GetArrayLength(env, data);
	uint64_t slots = shmring_slots_for((uint64_t)length, false);
	int64_t sequence = shmring_next(from_handle(producer), (uint32_t)slots);
	int status;

	if (sequence < 0)
		return answer(env, (int)sequence);
	array_copy(env, data, length, shmring_slot(from_handle(ring), (uint64_t)sequence));
	status = shmring_publish(from_handle(producer), (uint32_t)length, (uint8_t)kind, 0);
	if (status) {
		(void)answer(env, status);
		(void)shmring_abort(from_handle(producer));
		return status;
	}
	return sequence;
}

NATIVE(jint, publishMany, jlong producer, jlong last, jlong lengths)
{
	return answer(env, shmring_publish_ones(from_handle(producer), (uint64_t)last, from_handle(lengths), 0));
}

NATIVE(jint, waitSpace, jlong producer, jlong slots, jlong deadline, jint strategy)
{
	return answer(env,
		      shmring_wait_space(from_handle(producer), (uint64_t)slots, deadline, (uint8_t)strategy));
}

/* Returns the address of a claimed or held slot. */
NATIVE(jlong, slotAddress, jlong ring, jlong sequence)
{
	return to_handle(shmring_slot(from_handle(ring), (uint64_t)sequence));
}

/* Fills a part of the claim from a file. */
NATIVE(void, fill, jlong producer, jlong at, jbyteArray path, jlong offset, jlong length)
{
	struct text text;
	char said[sizeof text.chars + 256];
	int fd;

	if (!text_load(env, path, &text))
		return;
	fd = open(text.chars, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		(void)snprintf(said, sizeof said, "cannot open %s: %s", text.chars, strerror(errno));
		throw_status(env, SHMRING_E_SYSTEM, said);
		return;
	}
	(void)answer(env,
		     shmring_fill(from_handle(producer), (uint64_t)at, fd, (uint64_t)offset, (uint64_t)length));
	close(fd);
}

/* --- consumers: take, read, release -------------------------------------------- */

NATIVE(void, closeConsumer, jlong consumer)
{
	shmring_consumer_close(from_handle(consumer));
}

NATIVE(void, abandonConsumer, jlong consumer)
{
	shmring_consumer_abandon(from_handle(consumer));
}

NATIVE(void, interruptConsumer, jlong consumer)
{
	shmring_consumer_interrupt(from_handle(consumer), true);
}

NATIVE(void, takeEnds, jlong consumer)
{
	shmring_consumer_take_ends(from_handle(consumer), true);
}

NATIVE(void, hearEnds, jlong consumer, jlong since)
{
	shmring_consumer_hear_ends(from_handle(consumer), (uint64_t)since);
}

NATIVE(void, deadLetters, jlong consumer, jint max_deliveries, jlong producer)
{
	(void)answer(env, shmring_consumer_dead_letters(from_handle(consumer), (uint32_t)max_deliveries,
							from_handle(producer)));
}

/* A message, in the layout that Message.java reads. */
struct described {
	uint64_t behind;
	uint64_t message_id;
	uint64_t time;
	uint64_t offset; /* bytes from the first slot; the slots are mapped twice, so a message never wraps */
	uint64_t length;
	uint64_t kind;
	uint64_t slots;
};

/* Describes the message at *at, and moves *at to the end of the message. *at moves past a damaged message, too,
 * but stays if the message's length cannot be trusted. */
static int describe_message(const shmring *ring, uint64_t *at, uint64_t end, struct described *described)
{
	struct shmring_message message;
	int status = shmring_read(ring, at, end, &message);

	if (status == SHMRING_OK)
		*described = (struct described){
		    .behind = *at,
		    .message_id = message.message_id,
		    .time = message.time,
		    .offset = offset_of(ring, message.data),
		    .length = message.length,
		    .kind = message.kind,
		    .slots = message.slots,
		};
	return status;
}

/* Result of a take. Lease.java and Drain.java read it in place; one thread uses it at a time. */
struct taken {
	uint64_t first;
	uint64_t end;
	uint64_t messages;
	uint64_t redelivered;
	/* Sequence up to which Drain.java releases: the end of the lease, or the end of the last described
	 * message if a damaged message follows. take() says what `read` is if the first message is damaged. */
	uint64_t read;
	struct described described[];
};

/* Takes messages and describes the first ones, `room` at most. Returns the number of described messages, or a
 * status. Returns 0 if the first message is damaged: the caller gets the error by reading that message. `read` is
 * then the sequence after the damaged message, or the end of the lease if the message's length cannot be trusted.
 */
NATIVE(jint, take, jlong handle, jlong consumer, jint max_messages, jlong max_slots, jlong words, jint room)
{
	const shmring *ring = from_handle(handle);
	struct taken *taken = from_handle(words);
	struct shmring_lease lease;
	jint count = 0;
	uint64_t at;
	int status = shmring_take(from_handle(consumer), (uint32_t)max_messages, (uint64_t)max_slots, &lease);

	if (status)
		return answer(env, status);
	*taken = (struct taken){
	    .first = lease.first, .end = lease.end, .messages = lease.messages, .redelivered = lease.redelivered};
	at = taken->read = lease.first;
	if ((uint32_t)room > lease.messages) /* a damaged lease may seem to have more messages than were taken */
		room = (jint)lease.messages;
	while (count < room &&
	       (status = describe_message(ring, &at, lease.end, &taken->described[count])) == SHMRING_OK) {
		taken->read = at;
		count++;
	}
	if (status == SHMRING_OK || status == SHMRING_UNAVAILABLE)
		taken->read = lease.end;
	else if (count == 0)
		taken->read = at > lease.first ? at : lease.end;
	/* If all slots look aborted, a stray write has damaged the messages since they were taken. Release the
	 * slots, because no message is left to deliver. */
	if (count == 0 && status == SHMRING_UNAVAILABLE) {
		(void)shmring_release(from_handle(consumer), lease.first, lease.end);
		return status;
	}
	return count; /* if a message was damaged, Drain.java hands it and the rest back, for the next take */
}

NATIVE(jint, read, jlong ring, jlong position, jlong end, jlongArray result)
{
	struct described message;
	jint status = answer(
	    env, describe_message(from_handle(ring), &(uint64_t){(uint64_t)position}, (uint64_t)end, &message));

	if (status == SHMRING_OK)
		(*env)->SetLongArrayRegion(env, result, 0, sizeof message / sizeof(jlong),
					   (const jlong *)&message);
	return status;
}

NATIVE(jint, release, jlong consumer, jlong first, jlong end)
{
	return answer(env, shmring_release(from_handle(consumer), (uint64_t)first, (uint64_t)end));
}

/* Hands messages back. Tries again while another process holds the admin lock, to join or to recover. */
static int hand_back_range(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	struct timespec moment = {.tv_nsec = 50000}, now;
	int64_t since;
	int status;

	clock_gettime(CLOCK_MONOTONIC, &now);
	since = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
	while ((status = shmring_nack(consumer, first, end)) == SHMRING_CONTENDED &&
	       shmring_nack_again(consumer, since))
		nanosleep(&moment, NULL);
	return status;
}

NATIVE(jint, nack, jlong consumer, jlong first, jlong end)
{
	int status = hand_back_range(from_handle(consumer), (uint64_t)first, (uint64_t)end);

	return status == SHMRING_CONTENDED ? status : answer(env, status);
}

/* Returns a text about the holder (participant or branch) for which a consumer waits. */
NATIVE(jbyteArray, explainEmpty, jlong consumer)
{
	struct text text;

	shmring_explain_empty(from_handle(consumer), text.chars, sizeof(text.chars));
	return text_bytes(env, text.chars);
}

NATIVE(jint, waitMessage, jlong consumer, jlong deadline, jint strategy)
{
	return answer(env, shmring_wait_message(from_handle(consumer), deadline, (uint8_t)strategy));
}

NATIVE(jlong, available, jlong consumer)
{
	return (jlong)shmring_consumer_reach(from_handle(consumer));
}

NATIVE(void, overrun, jlong consumer, jlongArray result)
{
	uint64_t first;
	uint64_t end;

	shmring_consumer_overrun(from_handle(consumer), &first, &end);
	(*env)->SetLongArrayRegion(env, result, 0, 2, (jlong[]){(jlong)first, (jlong)end});
}

/* --- memory outside of the heap ------------------------------------------------- */

NATIVE(jlong, address, jobject buffer)
{
	return to_handle((*env)->GetDirectBufferAddress(env, buffer));
}

NATIVE(jobject, wrap, jlong address, jlong length)
{
	return (*env)->NewDirectByteBuffer(env, from_handle(address), length);
}
