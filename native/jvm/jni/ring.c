/* Rings and branches; and functions that all files of this folder share (glue.h). */
#include <limits.h>
#include <string.h>

#include "glue.h"

jbyteArray text_bytes(JNIEnv *env, const char *text)
{
	jsize length = (jsize)strlen(text);
	jbyteArray bytes = (*env)->NewByteArray(env, length);

	if (bytes)
		(*env)->SetByteArrayRegion(env, bytes, 0, length, (const jbyte *)text);
	return bytes;
}

void throw_status(JNIEnv *env, int status, const char *message)
{
	jclass class = (*env)->FindClass(env, "io/shmring/RingException");
	jmethodID constructor;
	jbyteArray bytes;
	jobject exception;

	if (!class)
		return; /* NoClassDefFoundError is pending */
	constructor = (*env)->GetMethodID(env, class, "<init>", "(I[B)V");
	bytes = constructor ? text_bytes(env, message) : NULL;
	if (!bytes)
		return;
	exception = (*env)->NewObject(env, class, constructor, (jint)status, bytes);
	if (exception)
		(*env)->Throw(env, exception);
}

jint answer(JNIEnv *env, int status)
{
	if (status < SHMRING_ENDED)
		throw_status(env, status, shmring_error_message());
	return status;
}

bool text_load(JNIEnv *env, jbyteArray bytes, struct text *text)
{
	jsize length = (*env)->GetArrayLength(env, bytes);

	if ((size_t)length >= sizeof text->chars) {
		throw_status(env, SHMRING_E_INVALID, "a path or name of 4 KB or more");
		return false;
	}
	(*env)->GetByteArrayRegion(env, bytes, 0, length, (jbyte *)text->chars);
	text->chars[length] = '\0';
	return true;
}

NATIVE(jbyteArray, pathOf, jbyteArray name)
{
	struct text text, path;

	if (!text_load(env, name, &text) ||
	    answer(env, shmring_path_of(text.chars, path.chars, sizeof path.chars)))
		return NULL;
	return text_bytes(env, path.chars);
}

NATIVE(jlong, attach, jbyteArray path, jint flags)
{
	shmring *ring = NULL;
	struct text text;

	if (text_load(env, path, &text))
		(void)answer(env, shmring_attach(text.chars, (uint32_t)flags, &ring));
	return to_handle(ring);
}

/* CHANGE: edit this for a new option of a ring */
/* Makes a ring. A temporary ring lasts only while some process is attached. So this call also attaches this
 * process to a temporary ring, and returns the handle; for any other ring it returns 0. */
NATIVE(jlong, create, jbyteArray path, jlong slots, jbyteArray schema, jboolean single_producer,
       jboolean temporary)
{
	struct shmring_options options = {
	    .slots = (uint64_t)slots, .single_producer = single_producer, .temporary = temporary};
	jsize length = (*env)->GetArrayLength(env, schema);
	jbyte *bytes = length ? (*env)->GetByteArrayElements(env, schema, NULL) : NULL;
	shmring *ring = NULL;
	struct text text;

	if (length && !bytes)
		return 0; /* OutOfMemoryError is pending */
	options.schema = bytes;
	options.schema_bytes = (size_t)length;
	if (text_load(env, path, &text))
		(void)answer(env, shmring_create(text.chars, &options, temporary ? &ring : NULL));
	if (bytes)
		(*env)->ReleaseByteArrayElements(env, schema, bytes, JNI_ABORT);
	return to_handle(ring);
}

NATIVE(jlong, openOrCreate, jbyteArray path, jlong slots)
{
	struct shmring_options options = {.slots = (uint64_t)slots};
	shmring *ring = NULL;
	struct text text;

	if (text_load(env, path, &text))
		(void)answer(env, shmring_open_or_create(text.chars, &options, &ring));
	return to_handle(ring);
}

/* Removes the name of this very ring. Returns false if another ring, or no ring, has the name. */
NATIVE(jboolean, unlink, jlong ring, jbyteArray path)
{
	struct shmring_info info;
	struct text text;
	int status;

	if (!text_load(env, path, &text))
		return JNI_FALSE;
	shmring_get_info(from_handle(ring), &info);
	status = shmring_unlink(text.chars, info.uuid, NULL, NULL);
	if (status == SHMRING_E_NOT_FOUND)
		return JNI_FALSE;
	return answer(env, status) == SHMRING_OK;
}

/* Unlinks a ring if all its participants are dead; returns whether it did. */
NATIVE(jboolean, reap, jbyteArray path)
{
	struct text text;
	int status;

	if (!text_load(env, path, &text))
		return JNI_FALSE;
	status = shmring_reap(text.chars);
	return status == 1 || (answer(env, status), false);
}

NATIVE(void, closeRing, jlong ring)
{
	shmring_close(from_handle(ring));
}

/* CHANGE: edit this for a new option of a ring */
/* Stores in `result`: slots, options (1 single producer, 2 checksum), layout major, layout minor, uuid as two
 * longs, first sequence, largest number of participants */
NATIVE(void, info, jlong ring, jlongArray result)
{
	struct shmring_info info;
	jlong words[8];

	shmring_get_info(from_handle(ring), &info);
	words[0] = (jlong)info.slots;
	words[1] = info.single_producer | info.checksum << 1;
	words[2] = info.layout_major;
	words[3] = info.layout_minor;
	words[4] = words[5] = 0;
	words[6] = (jlong)info.first_sequence;
	words[7] = (jlong)info.participants;
	for (int i = 0; i < 16; i++)
		words[4 + i / 8] = (jlong)((uint64_t)words[4 + i / 8] << 8 | info.uuid[i]);
	(*env)->SetLongArrayRegion(env, result, 0, 8, words);
}

NATIVE(jbyteArray, schemaBytes, jlong ring)
{
	struct shmring_info info;
	jbyteArray bytes;

	shmring_get_info(from_handle(ring), &info);
	bytes = info.schema_bytes <= INT_MAX ? (*env)->NewByteArray(env, (jsize)info.schema_bytes) : NULL;
	if (bytes && info.schema_bytes)
		(*env)->SetByteArrayRegion(env, bytes, 0, (jsize)info.schema_bytes, info.schema);
	return bytes;
}

/* Returns a text about the holder (participant or branch) for which producers on a full ring wait. */
NATIVE(jbyteArray, explainFull, jlong ring)
{
	struct text text;

	shmring_explain_full(from_handle(ring), text.chars, sizeof(text.chars));
	return text_bytes(env, text.chars);
}

NATIVE(jlong, claimed, jlong ring)
{
	return (jlong)shmring_claimed(from_handle(ring));
}

NATIVE(jlong, floor, jlong ring)
{
	return (jlong)shmring_floor(from_handle(ring));
}

NATIVE(jint, recover, jlong ring)
{
	return answer(env, shmring_recover(from_handle(ring), NULL));
}

static struct shmring_branch_options branch_options(jint start, jlong sequence, jint flags)
{
	return (struct shmring_branch_options){
	    .start = (uint8_t)start,
	    .sequence = (uint64_t)sequence,
	    .exclusive = flags & 1,
	    .ephemeral = flags & 2,
	    .drop_oldest = flags & 4,
	};
}

NATIVE(void, subscribe, jlong ring, jbyteArray branch, jint start, jlong sequence, jint flags)
{
	struct shmring_branch_options options = branch_options(start, sequence, flags);
	struct text text;

	if (text_load(env, branch, &text))
		(void)answer(env, shmring_subscribe(from_handle(ring), text.chars, &options, NULL));
}

NATIVE(void, unsubscribe, jlong ring, jbyteArray branch)
{
	struct text text;

	if (text_load(env, branch, &text))
		(void)answer(env, shmring_unsubscribe(from_handle(ring), text.chars));
}

/* Stores in `result`: the branch's position, the sequence up to which it has released all messages, the number of
 * end markers that it has reached, the number of its consumers, and whether it drops its oldest messages. Returns
 * false if there is no branch with this name. */
NATIVE(jboolean, branch, jlong ring, jbyteArray branch, jlongArray result)
{
	struct shmring_branch_info info;
	struct text text;
	uint32_t id;

	if (!text_load(env, branch, &text) || shmring_find_branch(from_handle(ring), text.chars, &id) ||
	    shmring_branch_info(from_handle(ring), id, &info))
		return JNI_FALSE;
	(*env)->SetLongArrayRegion(env, result, 0, 5,
				   (jlong[]){(jlong)info.position, (jlong)info.released, (jlong)info.ends,
					     (jlong)info.consumers, info.drop_oldest});
	return JNI_TRUE;
}

/* Returns the name of the branch with this number; NULL if there is none, or if it lives no longer than its
 * consumers. */
NATIVE(jbyteArray, lastingBranch, jlong ring, jint id)
{
	struct shmring_branch_info info;

	if (shmring_branch_info(from_handle(ring), (uint32_t)id, &info) || info.ephemeral)
		return NULL;
	return text_bytes(env, info.name);
}

NATIVE(jlong, join, jlong ring, jbyteArray branch, jint start, jlong sequence, jint flags, jbyteArray name)
{
	struct shmring_branch_options options = branch_options(start, sequence, flags);
	shmring_consumer *consumer = NULL;
	struct text where;
	struct text who;

	if (text_load(env, branch, &where) && text_load(env, name, &who))
		(void)answer(env, shmring_join(from_handle(ring), where.chars, &options, who.chars, &consumer));
	return to_handle(consumer);
}

/* Finds the messages that a take from sequence `from` on would get within three limits: it ends at sequence
 * `limit` at the latest, and has at most `max_messages` messages and `max_slots` slots. Stores in `result` the
 * sequence after these messages, and their number. */
NATIVE(void, measure, jlong ring, jlong from, jlong limit, jint max_messages, jlong max_slots, jlongArray result)
{
	uint32_t messages;
	uint64_t end;
	int status = shmring_measure(from_handle(ring), (uint64_t)from, (uint64_t)limit, (uint32_t)max_messages,
				     (uint64_t)max_slots, &end, &messages);

	if (answer(env, status) == SHMRING_OK)
		(*env)->SetLongArrayRegion(env, result, 0, 2, (jlong[]){(jlong)end, (jlong)messages});
}

/* Stores in `result`: role, pid, whether the participant lives, time of joining, lowest sequence held or -1,
 * number of messages and of bytes, and how often the participant waited for room. Returns the participant's name,
 * or null if the seat is free. */
NATIVE(jbyteArray, participant, jlong ring, jint index, jlongArray result)
{
	struct shmring_participant_info seat;

	if (shmring_participant_info(from_handle(ring), (uint32_t)index, &seat))
		return NULL;
	(*env)->SetLongArrayRegion(env, result, 0, 8,
				   (jlong[]){(jlong)seat.role, (jlong)seat.pid, seat.alive, (jlong)seat.joined_ns,
					     (jlong)seat.hold, (jlong)seat.messages, (jlong)seat.bytes,
					     (jlong)seat.full_waits});
	return text_bytes(env, seat.name);
}

/* Stores in `result`: the number of the slot of a sequence; how many branches still have to release the message in
 * the slot; and 1 if a message begins at exactly this sequence, else 0. The slot may still have a message of
 * another lap, which begins at another sequence. */
NATIVE(void, row, jlong handle, jlong sequence, jlongArray result)
{
	const shmring *ring = from_handle(handle);
	uint64_t index = offset_of(ring, shmring_slot(ring, (uint64_t)sequence)) / SHMRING_SLOT_BYTES;
	struct shmring_row row;

	if (answer(env, shmring_table_row(ring, index, &row, NULL, 0)) == SHMRING_OK)
		(*env)->SetLongArrayRegion(env, result, 0, 3,
					   (jlong[]){(jlong)index, (jlong)row.reference_count,
						     row.filled && row.message_id == (uint64_t)sequence});
}
