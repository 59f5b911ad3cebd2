/*
 * Refuses to make or open the files of worker rings, where it is preloaded. SHMRING_TEST_REFUSED names
 * a file that says which: the beginning of the program's name, the error's number, and the beginning of
 * the path. Refused paths are written to a file beside it. A ring is made as a file without a name, by
 * O_TMPFILE, or as a draft.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refused(const char *path, int flags)
{
	const char *said = getenv("SHMRING_TEST_REFUSED");
	char program[32] = "", begins[256] = "";
	int error = 0;

	bool is_ring = strstr(path, "/shmring.") || strstr(path, "/.shmring") || strstr(path, "worker.");
	if (!said || ((flags & O_TMPFILE) != O_TMPFILE && !is_ring))
		return 0;
	FILE *file = fopen(said, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%31s %d %255s", program, &error, begins) != 3)
		error = 0;
	fclose(file);
	if (strncmp(program_invocation_short_name, program, strlen(program)) ||
	    strncmp(path, begins, strlen(begins)))
		return 0;
	snprintf(begins, sizeof begins, "%s.hits", said);
	file = fopen(begins, "a");
	if (file) {
		fprintf(file, "%s\n", path);
		fclose(file);
	}
	return error;
}

int open(const char *path, int flags, ...)
{
	static int (*next)(const char *, int, ...);
	va_list rest;
	int error = refused(path, flags);

	if (error) {
		errno = error;
		return -1;
	}
	if (!next)
		next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
	va_start(rest, flags);
	int fd = next(path, flags, va_arg(rest, int));
	va_end(rest);
	return fd;
}
