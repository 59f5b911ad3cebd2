/* Common parts of the benchmarks on rings. */
#ifndef SHMRING_BENCH_RINGS_H
#define SHMRING_BENCH_RINGS_H

#include <shmring.h>

#include "bench.h"

static const char *made;
static pid_t maker;

static inline void must(int status, const char *what)
{
	if (status >= 0)
		return;
	fprintf(stderr, "%s: %d %s\n", what, status, shmring_error_message());
	exit(1);
}

static inline void unlink_made(void)
{
	if (getpid() == maker)
		unlink(made);
}

static inline void unlink_at_exit(const char *path)
{
	made = path;
	maker = getpid();
	atexit(unlink_made);
}

static inline void create(const char *path, const struct shmring_options *options)
{
	unlink(path);
	must(shmring_create(path, options, NULL), "create");
}

static inline shmring *attach(const char *path)
{
	shmring *ring;

	must(shmring_attach(path, 0, &ring), "attach");
	return ring;
}

#endif
