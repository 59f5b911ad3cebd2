/* The text of the last error, one text for each thread; and texts that are written in parts. */
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

void say(struct text *t, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(t->at, t->room, format, args);
	va_end(args);
	if (n > 0) {
		size_t used = (size_t)n < t->room ? (size_t)n : t->room - 1;

		t->at += used;
		t->room -= used;
	}
}

/* Writes a word of a command: in quotes, unless a shell takes each of its characters as it is. */
static void say_word(struct text *t, const char *word)
{
	if (word[0] && !word[strcspn(word, " \t\n\"\\'`$&|;<>()[]{}*?!#~=%^")]) {
		say(t, " %s", word);
		return;
	}
	say(t, " '");
	for (; *word; word++) {
		if (*word == '\'')
			say(t, "'\\''");
		else
			say(t, "%c", *word);
	}
	say(t, "'");
}

void say_command(struct text *t, const char *verb, const char *ring, const char *argument)
{
	say(t, "shmring %s", verb);
	if (ring[0] == '-') /* a path, because a name does not begin with "-" */
		say(t, " --");
	say_word(t, ring);
	if (!argument)
		return;
	if (ring[0] != '-' && argument[0] == '-')
		say(t, " --");
	say_word(t, argument);
}
