/* Helpers of all JNI files: they pass pointers as jlong and texts as byte[], and throw the core's errors as Java
 * exceptions. */
#ifndef SHMRING_JNI_GLUE_H
#define SHMRING_JNI_GLUE_H

#include <jni.h>
#include <stdbool.h>

#include "shmring.h"

/* Defines a static native method of Native.java. */
#define NATIVE(type, name, ...)                                                                                   \
	JNIEXPORT type JNICALL Java_io_shmring_Native_##name(JNIEnv *env UNUSED, jclass class UNUSED, __VA_ARGS__)
#define UNUSED __attribute__((unused))

/* Converts a number from Java to the pointer that it stands for: a handle or an address. A handle is always open,
 * because the Java classes pass the result of their method handle(), which throws if the object was closed. */
static inline void *from_handle(jlong handle)
{
	return (void *)(intptr_t)handle; // NOLINT
}

static inline jlong to_handle(const void *pointer)
{
	return (jlong)(intptr_t)pointer;
}

/* Returns an address's offset in bytes from the ring's first slot, the slot of sequence 0. */
static inline uint64_t offset_of(const shmring *ring, const void *address)
{
	return (uint64_t)((const char *)address - (const char *)shmring_slot(ring, 0));
}

/* A Java byte[] of UTF-8 as a C string. */
struct text {
	char chars[4096];
};
bool text_load(JNIEnv *env, jbyteArray bytes, struct text *text);
jbyteArray text_bytes(JNIEnv *env, const char *text);

/* Returns `status`. If it is an error of the core, also throws io.shmring.RingException with the core's message.
 * OK and the statuses -1 to -6 (for example: the ring is full, or a wait timed out) are no errors: Java handles
 * them. */
jint answer(JNIEnv *env, int status);
void throw_status(JNIEnv *env, int status, const char *message);

#endif
