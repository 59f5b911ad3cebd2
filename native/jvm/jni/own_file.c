/* Reads and writes small files in folders that other users may write to. Another user may have put a file of the
 * same name there, so a file is used only if no other user can have made it, and only users that may write the
 * ring can have changed it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "glue.h"

enum { OTHERS_WRITE = S_IWGRP | S_IWOTH, PERMISSIONS = 07777 };

static void throw_io(JNIEnv *env, const char *message)
{
	jclass class = (*env)->FindClass(env, "java/io/IOException");

	if (class)
		(*env)->ThrowNew(env, class, message);
}

/* Throws if another user can have made the file, or if the file's mode lets more users write than `mode`, which is
 * the ring's mode. */
static bool is_own(JNIEnv *env, int fd, mode_t mode, struct stat *st)
{
	char text[128];

	if (fstat(fd, st)) {
		throw_io(env, strerror(errno));
		return false;
	}
	if (!S_ISREG(st->st_mode)) {
		throw_io(env, "it is not a regular file");
		return false;
	}
	if (st->st_uid != geteuid()) {
		(void)snprintf(text, sizeof text, "it belongs to user %u, not to you (%u)", st->st_uid, geteuid());
		throw_io(env, text);
		return false;
	}
	if (st->st_nlink > 1) {
		throw_io(env, "it has a second name (hard link), so that it may be another file of yours");
		return false;
	}
	if (st->st_mode & OTHERS_WRITE & ~mode) {
		(void)snprintf(text, sizeof text,
			       "other users may write it (mode %04o), and its ring has mode %04o",
			       st->st_mode & PERMISSIONS, mode);
		throw_io(env, text);
		return false;
	}
	return true;
}

/* Opens a regular file of this user. Sets O_NONBLOCK, because opening a FIFO would wait. Returns -1 if there is no
 * file, or if an exception is pending. */
static int open_own(JNIEnv *env, const char *path, int flags, mode_t mode, struct stat *st)
{
	int fd = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);

	if (fd < 0) {
		if (errno == ELOOP || errno == ENXIO || errno == EISDIR)
			throw_io(env, "it is not a regular file");
		else if (errno != ENOENT || flags & O_CREAT)
			throw_io(env, strerror(errno));
		return -1;
	}
	if (is_own(env, fd, mode, st))
		return fd;
	close(fd);
	return -1;
}

/* Reads a file of this user; returns null if there is none. */
NATIVE(jbyteArray, readOwn, jbyteArray path, jint mode, jint most)
{
	char bytes[4096];
	jbyteArray result = NULL;
	struct stat st;
	struct text text;
	ssize_t n;
	int fd = text_load(env, path, &text) ? open_own(env, text.chars, O_RDONLY, (mode_t)mode, &st) : -1;

	if (fd < 0)
		return NULL;
	n = pread(fd, bytes, (size_t)most < sizeof bytes ? (size_t)most : sizeof bytes, 0);
	if (n < 0)
		throw_io(env, strerror(errno));
	else
		result = (*env)->NewByteArray(env, (jsize)n);
	if (result)
		(*env)->SetByteArrayRegion(env, result, 0, (jsize)n, (const jbyte *)bytes);
	close(fd);
	return result;
}

/* Writes `content` at the beginning of a file of this user, and sets the file's mode. Makes the file if there is
 * none. If the write fails on a file that was shorter than `content`, for example on a new file, the call removes
 * the file, which may have only a part of the content. A file that was long enough before the call stays, because
 * overwriting needs no disk space. */
NATIVE(void, writeOwn, jbyteArray path, jint mode, jbyteArray content)
{
	jsize length = (*env)->GetArrayLength(env, content);
	jbyte *bytes = (*env)->GetByteArrayElements(env, content, NULL);
	struct stat st;
	struct text text;
	ssize_t n;
	int fd = bytes && text_load(env, path, &text)
		     ? open_own(env, text.chars, O_WRONLY | O_CREAT, (mode_t)mode, &st)
		     : -1;

	if (fd >= 0) {
		errno = ENOSPC; /* for a short write, which sets no errno */
		n = pwrite(fd, bytes, (size_t)length, 0);
		if (n < length) {
			throw_io(env, strerror(errno));
			if (st.st_size < length)
				unlink(text.chars);
		} else if ((st.st_mode & PERMISSIONS) != (mode_t)mode && fchmod(fd, (mode_t)mode)) {
			throw_io(env, strerror(errno));
		}
		close(fd);
	}
	if (bytes)
		(*env)->ReleaseByteArrayElements(env, content, bytes, JNI_ABORT);
}
