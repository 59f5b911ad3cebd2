/* Consumers: take, read, release, and the bytes of messages that are held. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "glue.h"

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

/* A message as Message.java reads it. */
struct described {
	uint64_t behind;
	uint64_t message_id;
	uint64_t time;
	uint64_t offset; /* from the first slot; they are mapped twice */
	uint64_t length;
	uint64_t kind;
	uint64_t slots;
};

/* *at is behind the message then, also if it is damaged, unless even its length cannot be trusted. */
static int describe(const shmring *ring, uint64_t *at, uint64_t end, struct described *described)
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

/* As Lease.java and Drain.java read it; nobody else has it meanwhile. */
struct taken {
	uint64_t first;
	uint64_t end;
	uint64_t messages;
	uint64_t redelivered;
	uint64_t read; /* behind what is described, and what was aborted beside it */
	struct described described[];
};

/* Takes messages and describes the first ones, `room` at most; returns how many it has described, or an answer.
 * That is none if the first one is damaged: a read of it says so, and `read` is behind it, as with
 * shmring_take_one(), or the end if even its length cannot be trusted. */
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
	if ((uint32_t)room > lease.messages) /* entries that are damaged meanwhile make it no more */
		room = (jint)lease.messages;
	while (count < room && (status = describe(ring, &at, lease.end, &taken->described[count])) == SHMRING_OK) {
		taken->read = at;
		count++;
	}
	if (status == SHMRING_OK || status == SHMRING_UNAVAILABLE)
		taken->read = lease.end;
	else if (count == 0)
		taken->read = at > lease.first ? at : lease.end;
	if (count == 0 && status == SHMRING_UNAVAILABLE) { /* what the take found is aborted now */
		(void)shmring_release(from_handle(consumer), lease.first, lease.end);
		return status;
	}
	return count; /* a damaged message behind them comes first in the next take */
}

NATIVE(jint, read, jlong ring, jlong position, jlong end, jlongArray result)
{
	struct described message;
	jint status =
	    answer(env, describe(from_handle(ring), &(uint64_t){(uint64_t)position}, (uint64_t)end, &message));

	if (status == SHMRING_OK)
		(*env)->SetLongArrayRegion(env, result, 0, sizeof message / sizeof(jlong),
					   (const jlong *)&message);
	return status;
}

NATIVE(jint, release, jlong consumer, jlong first, jlong end)
{
	return answer(env, shmring_release(from_handle(consumer), (uint64_t)first, (uint64_t)end));
}

/* Tries while others may still be joining or recovering. */
static int hand_back(shmring_consumer *consumer, uint64_t first, uint64_t end)
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
	int status = hand_back(from_handle(consumer), (uint64_t)first, (uint64_t)end);

	return status == SHMRING_CONTENDED ? status : answer(env, status);
}

/* A text about whom a consumer waits for. */
NATIVE(jbyteArray, explainEmpty, jlong consumer)
{
	struct text text;

	shmring_explain_empty(from_handle(consumer), text.chars, sizeof(text.chars));
	return text_bytes(env, &text);
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
