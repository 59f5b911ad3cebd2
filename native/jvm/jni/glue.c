#include "glue.h"

#include <string.h>

void throw_status(JNIEnv *env, int status, const char *message)
{
	jclass class = (*env)->FindClass(env, "io/shmring/RingException");
	jmethodID constructor;
	jbyteArray bytes;
	jobject exception;
	jsize length = (jsize)strlen(message);

	if (!class)
		return; /* NoClassDefFoundError is pending */
	constructor = (*env)->GetMethodID(env, class, "<init>", "(I[B)V");
	bytes = constructor ? (*env)->NewByteArray(env, length) : NULL;
	if (!bytes)
		return;
	(*env)->SetByteArrayRegion(env, bytes, 0, length, (const jbyte *)message);
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

jbyteArray text_bytes(JNIEnv *env, const struct text *text)
{
	jsize length = (jsize)strlen(text->chars);
	jbyteArray bytes = (*env)->NewByteArray(env, length);

	if (bytes)
		(*env)->SetByteArrayRegion(env, bytes, 0, length, (const jbyte *)text->chars);
	return bytes;
}
