/* The text of the last error, one text for each thread. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core.h"

static _Thread_local char message[640];
static _Thread_local const char *text = "";

const char *shmring_error_message(void)
{
	return text;
}

/* Sets the message of a status that is not an error. Otherwise shmring_error_message() would return the message of
 * an earlier error. */
int not_now(int status)
{
	switch (status) {
	case SHMRING_UNAVAILABLE:
		text = "nothing available now: the ring is full or empty, or the seat is free";
		break;
	case SHMRING_CONTENDED:
		text = "another process was faster: try again";
		break;
	case SHMRING_ENDED:
		text = "the stream has ended: the next take continues after the end marker";
		break;
	case SHMRING_AGAIN:
		text = "the wait's time slice is over, or a signal came: wait again";
		break;
	case SHMRING_TIMEOUT:
		text = "the wait's time is over";
		break;
	default:
		break;
	}
	return status;
}

int fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	text = message;
	return status;
}

int fail_forked(const char *name)
{
	return fail(SHMRING_E_FORKED,
		    "this handle of ring \"%s\" belongs to the parent process; attach again in the child", name);
}

int fail_entry(const char *name, uint64_t sequence, uint32_t run, uint32_t length)
{
	return fail(SHMRING_E_DAMAGED,
		    "ring \"%s\": the control entry of message %llu is damaged (run %u, length %u)", name,
		    (unsigned long long)sequence, run, length);
}

int fail_errno(const char *what, const char *name)
{
	int status = SHMRING_E_SYSTEM;

	/* CHANGE: edit this for a new error */
	switch (errno) {
	case ENOENT:
		status = SHMRING_E_NOT_FOUND;
		break;
	case EEXIST:
		status = SHMRING_E_EXISTS;
		break;
	case EACCES:
	case EPERM:
	case EROFS:
	case ELOOP: /* O_NOFOLLOW met a symbolic link */
		status = SHMRING_E_PERMISSION;
		break;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		status = SHMRING_E_NO_SPACE;
		break;
	case ENOMEM:
		status = SHMRING_E_NO_MEMORY;
		break;
	default:
		break;
	}
	return fail(status, "ring \"%s\": %s: %s", name, what,
		    errno == ELOOP ? "the path is a symbolic link, which is refused" : strerror(errno));
}
