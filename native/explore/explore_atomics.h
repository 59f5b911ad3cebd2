/* Stands in for atomics.h. Every access to a shared word asks the explorer first,
 * and the explorer may let another thread go on instead. Orderings and barriers mean
 * nothing if the explorer searches only sequentially consistent runs. */
#ifndef EXPLORE_ATOMICS_H
#define EXPLORE_ATOMICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Orderings of an access, as bits. They count only in `explore --weak`. */
enum explore_order { RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = ACQ_REL };

/* An access in the core's text. `explore --weaken` makes one access relaxed. */
struct explore_access {
	const char *name, *operand, *file, *function;
	int line;
	enum explore_order order;
	bool known; /* already in the list of accesses, and weakened if --weaken names it */
	bool executed; /* a thread has executed the access in this case */
};

#define EXPLORE_ACCESS(access, p, how)                                                                            \
	static struct explore_access explore_here = {                                                             \
	    .name = access, .operand = p, .file = __FILE__, .function = __func__, .line = __LINE__, .order = how}

/* Accesses to shared words. Each call returns when it is this thread's turn. */
uint64_t explore_load(const volatile void *p, size_t bytes, struct explore_access *);
void explore_store(volatile void *p, size_t bytes, uint64_t value, struct explore_access *);
/* Read of a read-modify-write: no other access comes between the read and the write, if there is a write. */
uint64_t explore_rmw_read(volatile void *p, size_t bytes, struct explore_access *);
uint64_t explore_cas_read(volatile void *p, size_t bytes, uint64_t expected, struct explore_access *);
uint64_t explore_newest_read(volatile void *p, size_t bytes, uint64_t expected, struct explore_access *);
void explore_rmw_write(volatile void *p, size_t bytes, uint64_t value, struct explore_access *);
uint64_t explore_kernel_load(void *p, size_t bytes, struct explore_access *); /* load by a system call */
void explore_fence(struct explore_access *);
void explore_fence_all(struct explore_access *); /* every thread runs a full fence */
/* Copies payload bytes; reports a violation if another thread's access is not ordered before this one. */
void *explore_memcpy(void *to, const void *from, size_t n);

#define EXPLORE_LOAD(access, p, order)                                                                            \
	({                                                                                                        \
		EXPLORE_ACCESS(access, #p, order);                                                                \
		(__typeof__(*(p)))explore_load((p), sizeof *(p), &explore_here);                                  \
	})

#define EXPLORE_STORE(access, p, v, order)                                                                        \
	do {                                                                                                      \
		EXPLORE_ACCESS(access, #p, order);                                                                \
		explore_store((p), sizeof *(p), (uint64_t)(v), &explore_here);                                    \
	} while (0)

/* Evaluates the operand first, because the operand may be an access itself. */
#define EXPLORE_FETCH(access, p, operator, v)                                                                     \
	({                                                                                                        \
		EXPLORE_ACCESS(access, #p, SEQ_CST);                                                              \
		__typeof__(*(p)) explore_v = (__typeof__(*(p)))(v);                                               \
		__typeof__(*(p)) explore_old =                                                                    \
		    (__typeof__(*(p)))explore_rmw_read((p), sizeof *(p), &explore_here);                          \
		explore_rmw_write((p), sizeof *(p),                                                               \
				  (__typeof__(*(p)))(explore_old operator explore_v), &explore_here);             \
		explore_old;                                                                                      \
	})

#define EXPLORE_CAS(access, p, expected, desired, order, read)                                                    \
	({                                                                                                        \
		EXPLORE_ACCESS(access, #p, order);                                                                \
		__typeof__(*(p)) explore_v = (desired);                                                           \
		__typeof__(*(p)) explore_old =                                                                    \
		    (__typeof__(*(p)))read((p), sizeof *(p), *(expected), &explore_here);                         \
		bool explore_same = explore_old == *(expected);                                                   \
		if (explore_same)                                                                                 \
			explore_rmw_write((p), sizeof *(p), explore_v, &explore_here);                            \
		else                                                                                              \
			*(expected) = explore_old;                                                                \
		explore_same;                                                                                     \
	})

#define EXPLORE_FENCE(access, order, fence)                                                                       \
	do {                                                                                                      \
		EXPLORE_ACCESS(access, "", order);                                                                \
		fence(&explore_here);                                                                             \
	} while (0)

/* CHANGE: edit this for a new memory ordering */
#define load_relaxed(p) EXPLORE_LOAD("load_relaxed", p, RELAXED)
#define load_acquire(p) EXPLORE_LOAD("load_acquire", p, ACQUIRE)
#define store_relaxed(p, v) EXPLORE_STORE("store_relaxed", p, v, RELAXED)
#define store_release(p, v) EXPLORE_STORE("store_release", p, v, RELEASE)
#define fetch_or_seq_cst(p, v) EXPLORE_FETCH("fetch_or_seq_cst", p, |, v)
#define fetch_and_seq_cst(p, v) EXPLORE_FETCH("fetch_and_seq_cst", p, &, v)
#define fetch_add_seq_cst(p, v) EXPLORE_FETCH("fetch_add_seq_cst", p, +, v)
#define cas_release(p, expected, desired)                                                                         \
	EXPLORE_CAS("cas_release", p, expected, desired, RELEASE, explore_cas_read)
#define cas_relaxed(p, expected, desired)                                                                         \
	EXPLORE_CAS("cas_relaxed", p, expected, desired, RELAXED, explore_cas_read)
#define cas_seq_cst(p, expected, desired)                                                                         \
	EXPLORE_CAS("cas_seq_cst", p, expected, desired, SEQ_CST, explore_cas_read)
#define cas32_seq_cst(p, expected, desired)                                                                       \
	EXPLORE_CAS("cas32_seq_cst", p, expected, desired, SEQ_CST, explore_cas_read)
/* Compares with the newest store, because the kernel compares under its own lock. */
#define cas_of_kernel(p, expected, desired)                                                                       \
	EXPLORE_CAS("cas_of_kernel", p, expected, desired, SEQ_CST, explore_newest_read)

#define fence_acquire() EXPLORE_FENCE("fence_acquire", ACQUIRE, explore_fence)
#define fence_release() EXPLORE_FENCE("fence_release", RELEASE, explore_fence)
#define fence_seq_cst() EXPLORE_FENCE("fence_seq_cst", SEQ_CST, explore_fence)

/* A light barrier does nothing if the heavy barrier is membarrier(2), as in atomics.c (not compiled here). */
#define light_barrier(asymmetric)                                                                                 \
	do {                                                                                                      \
		if (!(asymmetric))                                                                                \
			EXPLORE_FENCE("light_barrier", SEQ_CST, explore_fence);                                   \
	} while (0)
#define heavy_barrier(asymmetric)                                                                                 \
	do {                                                                                                      \
		EXPLORE_ACCESS("heavy_barrier", "", SEQ_CST);                                                     \
		if (asymmetric)                                                                                   \
			explore_fence_all(&explore_here);                                                         \
		else                                                                                              \
			explore_fence(&explore_here);                                                             \
	} while (0)

bool asymmetric_barriers_available(void);

static inline void crash_order(void)
{
}

static inline void spin_hint(void)
{
}

/* Replacements for the core's calls of the system. Allocated memory lies where the
 * explorer can restore it, and time stands still. (Locks are words of the explorer's
 * memory: system.c stands in for locks.c.) */
void *explore_malloc(size_t size);
void *explore_calloc(size_t n, size_t size);
void *explore_aligned_alloc(size_t alignment, size_t size);
void explore_free(void *p);
long explore_syscall(long number, ...);
int explore_sleep(const struct timespec *time, struct timespec *left);
int explore_clock(int clock, struct timespec *time);
FILE *explore_fopen(const char *path, const char *mode);

#define malloc explore_malloc
#define calloc explore_calloc
#define aligned_alloc explore_aligned_alloc
#define free explore_free
#define syscall explore_syscall
#define nanosleep explore_sleep
#define clock_gettime explore_clock
#define fopen explore_fopen
#define memcpy explore_memcpy

#endif
