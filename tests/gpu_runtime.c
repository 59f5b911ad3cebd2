/* Stands in for a GPU's runtime library: refuses what CUDA's refuses, counts what it would have been harmed by,
 * and copies when the test says so. One stream. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { INVALID = 1, NOT_READY = 600, ALREADY = 712, NOT_REGISTERED = 713, MOST = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	char *from;
	size_t bytes;
	unsigned flags;
} regions[16];
static struct {
	char *to;
	const char *from;
	size_t bytes;
} copies[MOST];
static uint64_t begun, done; /* copies */
static int held, harm, last, fail_next, fail_record;
static unsigned flags_seen;
static size_t bytes_seen;

static int is_mapped(char *from, size_t bytes)
{
	static unsigned char pages[1 << 20];

	return bytes / 4096 < sizeof pages && mincore((void *)((uintptr_t)from & -4096UL), bytes, pages) == 0;
}

static int answer(int error)
{
	if (error)
		last = error;
	pthread_mutex_unlock(&lock);
	return error;
}

static int overlaps(int i, const char *from, size_t bytes)
{
	return regions[i].from && from < regions[i].from + regions[i].bytes && regions[i].from < from + bytes;
}

int cudaHostRegister(void *from, size_t bytes, unsigned flags)
{
	int place = -1;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < 16; i++) {
		if (overlaps(i, from, bytes))
			return answer(ALREADY);
		if (!regions[i].from)
			place = i;
	}
	if (fail_next) {
		fail_next = 0;
		return answer(INVALID);
	}
	if (!is_mapped(from, bytes))
		return answer(INVALID);
	regions[place].from = from;
	regions[place].bytes = bytes_seen = bytes;
	flags_seen = flags;
	return answer(0);
}

int cudaHostUnregister(void *from)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 16; i++) {
		if (!from || regions[i].from != from)
			continue;
		harm += !is_mapped(from, regions[i].bytes);
		for (uint64_t n = done; n < begun; n++)
			harm += overlaps(i, copies[n % MOST].from, copies[n % MOST].bytes);
		regions[i].from = NULL;
		return answer(0);
	}
	return answer(NOT_REGISTERED);
}

static void advance(uint64_t to) /* under the lock */
{
	for (; done < to; done++)
		memcpy(copies[done % MOST].to, copies[done % MOST].from, copies[done % MOST].bytes);
}

int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
	(void)stream;
	pthread_mutex_lock(&lock);
	if (kind != 1 || fail_next) {
		fail_next = 0;
		return answer(INVALID);
	}
	for (int i = 0; i < 16; i++)
		if (overlaps(i, from, bytes) && ((const char *)from < regions[i].from ||
						 (const char *)from + bytes > regions[i].from + regions[i].bytes))
			return answer(INVALID); /* it crosses an end */
	copies[begun % MOST].to = to;
	copies[begun % MOST].from = from;
	copies[begun++ % MOST].bytes = bytes;
	if (!held)
		advance(begun);
	return answer(0);
}

int cudaEventCreateWithFlags(uint64_t **event, unsigned flags)
{
	(void)flags;
	*event = calloc(1, sizeof **event);
	return 0;
}

int cudaEventRecord(uint64_t *event, void *stream)
{
	(void)stream;
	pthread_mutex_lock(&lock);
	if (fail_record) {
		fail_record = 0;
		return answer(INVALID);
	}
	*event = begun;
	return answer(0);
}

int cudaStreamSynchronize(void *stream)
{
	(void)stream;
	pthread_mutex_lock(&lock);
	advance(begun);
	return answer(0);
}

int cudaEventQuery(uint64_t *event)
{
	int ready;

	pthread_mutex_lock(&lock);
	ready = done >= *event;
	pthread_mutex_unlock(&lock);
	return ready ? 0 : NOT_READY;
}

int cudaEventDestroy(uint64_t *event)
{
	free(event);
	return 0;
}

int cudaGetLastError(void)
{
	int error = last;

	last = 0;
	return error;
}

const char *cudaGetErrorString(int error)
{
	return error == INVALID ? "invalid argument" : "another error";
}

/* --- for the test ------------------------------------------------------------------- */

void hold(int on)
{
	pthread_mutex_lock(&lock);
	held = on;
	if (!on)
		advance(begun);
	pthread_mutex_unlock(&lock);
}

void finish_all_but_the_last(void)
{
	pthread_mutex_lock(&lock);
	advance(begun - 1);
	pthread_mutex_unlock(&lock);
}

int count_regions(void)
{
	int n = 0;

	for (int i = 0; i < 16; i++)
		n += regions[i].from != NULL;
	return n;
}

int is_registered(const char *at)
{
	for (int i = 0; i < 16; i++)
		if (overlaps(i, at, 1))
			return 1;
	return 0;
}

uint64_t count_copies(void)
{
	return begun;
}
int count_harm(void)
{
	return harm;
}
unsigned last_flags(void)
{
	return flags_seen;
}
size_t last_bytes(void)
{
	return bytes_seen;
}
void refuse_next(void)
{
	fail_next = 1;
}
void refuse_next_record(void)
{
	fail_record = 1;
}
int count_under_way(void)
{
	return (int)(begun - done);
}

__attribute__((destructor)) static void report(void)
{
	if (getenv("GPU_RUNTIME_REPORT"))
		fprintf(stderr, "%d regions, %d harm\n", count_regions(), harm);
}
