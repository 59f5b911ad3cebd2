/* Producers: claims are filled through addresses that Java bounds. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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

/* Publishes the claim as one message for each part, of which Claim.java has three numbers. */
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

/* One message of at most a slot, which lies outside of the heap. */
NATIVE(jlong, push, jlong producer, jlong data, jint length, jint kind)
{
	uint64_t id;
	int status = shmring_push(from_handle(producer), from_handle(data), (size_t)length, (uint8_t)kind, &id);

	return status ? answer(env, status) : (jlong)id;
}

#define MOST_AT_ONCE (1 << 20)

/* Bytes of an array, in parts: a garbage collection waits for the end of each. */
static void array_copy(JNIEnv *env, jbyteArray from, jint length, void *to)
{
	for (jint copied = 0; copied < length;) {
		jint part = length - copied < MOST_AT_ONCE ? length - copied : MOST_AT_ONCE;

		(*env)->GetByteArrayRegion(env, from, copied, part, (jbyte *)to + copied);
		copied += part;
	}
}

/* One message of several slots. */
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

/* A claim for messages of a slot each, and how far from the first slot each of them lies. */
NATIVE(jlong, claimMany, jlong ring, jlong producer, jint count, jlong result)
{
	const char *slots = shmring_slot(from_handle(ring), 0);
	int64_t sequence = shmring_next(from_handle(producer), (uint32_t)count);
	uint64_t *offsets = from_handle(result);

	if (sequence < 0)
		return answer(env, (int)sequence);
	for (jint i = 0; i < count; i++)
		offsets[i] =
		    (uint64_t)((const char *)shmring_slot(from_handle(ring), (uint64_t)sequence + (uint64_t)i) -
			       slots);
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

/* The address of a claimed or held slot. */
NATIVE(jlong, slotAddress, jlong ring, jlong sequence)
{
	return to_handle(shmring_slot(from_handle(ring), (uint64_t)sequence));
}

/* A part of the claim from a file. */
NATIVE(void, fill, jlong producer, jlong at, jbyteArray path, jlong offset, jlong length)
{
	struct text text;
	int fd;

	if (!text_load(env, path, &text))
		return;
	fd = open(text.chars, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		throw_status(env, SHMRING_E_SYSTEM, strerror(errno));
		return;
	}
	(void)answer(env,
		     shmring_fill(from_handle(producer), (uint64_t)at, fd, (uint64_t)offset, (uint64_t)length));
	close(fd);
}
