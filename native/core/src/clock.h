/* Reading the clocks. */
#ifndef SHMRING_CLOCK_H
#define SHMRING_CLOCK_H

#include <time.h>

#include "atomics.h"

static inline uint64_t now_ns(int clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline int64_t monotonic(void)
{
	return (int64_t)now_ns(CLOCK_MONOTONIC);
}

#endif
