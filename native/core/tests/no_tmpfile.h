/* Simulates a file system without O_TMPFILE (vfat): once told to, open() refuses the flag in a
 * program that includes this file. (Not a seccomp filter: qemu-user has none.) */
#ifndef SHMRING_NO_TMPFILE_H
#define SHMRING_NO_TMPFILE_H

#include <stdarg.h>

#include "check.h"

#define TMPFILE_BIT (O_TMPFILE & ~O_DIRECTORY)

static bool no_tmpfile;

/* In place of libc's. */
int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | TMPFILE_BIT) ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (no_tmpfile && flags & TMPFILE_BIT) {
		errno = EOPNOTSUPP;
		return -1;
	}
	return openat(AT_FDCWD, path, flags, mode);
}

static inline void refuse_tmpfile(void)
{
	no_tmpfile = true;
	NEED(open("/dev/shm", O_TMPFILE | O_RDWR, 0600) < 0 && errno == EOPNOTSUPP);
}

#endif
