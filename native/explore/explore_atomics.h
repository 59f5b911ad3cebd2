/* Stands in for atomics.h: every access to a shared word asks the explorer
 * first, which may let another thread go on instead. Where the explorer searches
 * sequentially consistent runs only, orderings and barriers mean nothing. */
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

/* What an access orders: bits. Whether this means anything is for explore.c to say. */
enum explore_order { RELAXED, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST = ACQ_REL };

/* Each returns when it is this thread's turn. */
uint64_t explore_load(const volatile void *p, size_t bytes, enum explore_order, const char *function, int line);
void explore_store(volatile void *p, size_t bytes, uint64_t value, enum explore_order, const char *function,
		   int line);
/* A read that nothing comes behind until the write, if there is one. */
uint64_t explore_rmw_read(volatile void *p, size_t bytes, enum explore_order, const char *function, int line);
void explore_rmw_write(volatile void *p, size_t bytes, uint64_t value, enum explore_order);
uint64_t explore_kernel_load(void *p, size_t bytes, const char *function, int line); /* by a system call */
void explore_fence(enum explore_order, const char *function, int line);
void explore_fence_all(const char *function, int line); /* every thread runs a full fence */
/* Payload bytes: they may be accessed by who has a right to, and by nobody else meanwhile. */
void *explore_memcpy(void *to, const void *from, size_t n);

#define load_relaxed(p) ((__typeof__(*(p)))explore_load((p), sizeof *(p), RELAXED, __func__, __LINE__))
#define load_acquire(p) ((__typeof__(*(p)))explore_load((p), sizeof *(p), ACQUIRE, __func__, __LINE__))
#define store_relaxed(p, v) explore_store((p), sizeof *(p), (uint64_t)(v), RELAXED, __func__, __LINE__)
#define store_release(p, v) explore_store((p), sizeof *(p), (uint64_t)(v), RELEASE, __func__, __LINE__)

/* The operand first: it may be an access itself. */
#define EXPLORE_FETCH(p, operator, v, order)                                                                      \
	({                                                                                                        \
		__typeof__(*(p)) explore_v = (__typeof__(*(p)))(v);                                               \
		__typeof__(*(p)) explore_old =                                                                    \
		    (__typeof__(*(p)))explore_rmw_read((p), sizeof *(p), order, __func__, __LINE__);              \
		explore_rmw_write((p), sizeof *(p), (__typeof__(*(p)))(explore_old operator explore_v), order);   \
		explore_old;                                                                                      \
	})

#define EXPLORE_CAS(p, expected, desired, order)                                                                  \
	({                                                                                                        \
		__typeof__(*(p)) explore_v = (desired);                                                           \
		__typeof__(*(p)) explore_old =                                                                    \
		    (__typeof__(*(p)))explore_rmw_read((p), sizeof *(p), order, __func__, __LINE__);              \
		bool explore_same = explore_old == *(expected);                                                   \
		if (explore_same)                                                                                 \
			explore_rmw_write((p), sizeof *(p), explore_v, order);                                    \
		else                                                                                              \
			*(expected) = explore_old;                                                                \
		explore_same;                                                                                     \
	})

/* The relaxed ones are for orderings.py, which weakens the core's. */
#define fetch_or_seq_cst(p, v) EXPLORE_FETCH(p, |, v, SEQ_CST)
#define fetch_or_relaxed(p, v) EXPLORE_FETCH(p, |, v, RELAXED)
#define fetch_and_seq_cst(p, v) EXPLORE_FETCH(p, &, v, SEQ_CST)
#define fetch_and_relaxed(p, v) EXPLORE_FETCH(p, &, v, RELAXED)
#define fetch_add_seq_cst(p, v) EXPLORE_FETCH(p, +, v, SEQ_CST)
#define fetch_add_relaxed(p, v) EXPLORE_FETCH(p, +, v, RELAXED)
#define cas_acq_rel(p, expected, desired) EXPLORE_CAS(p, expected, desired, ACQ_REL)
#define cas_seq_cst(p, expected, desired) EXPLORE_CAS(p, expected, desired, SEQ_CST)
#define cas32_seq_cst(p, expected, desired) EXPLORE_CAS(p, expected, desired, SEQ_CST)
#define cas_relaxed(p, expected, desired) EXPLORE_CAS(p, expected, desired, RELAXED)

#define fence_acquire() explore_fence(ACQUIRE, __func__, __LINE__)
#define fence_release() explore_fence(RELEASE, __func__, __LINE__)
#define fence_seq_cst() explore_fence(SEQ_CST, __func__, __LINE__)

static inline void light_barrier(bool asymmetric)
{
	if (!asymmetric)
		fence_seq_cst();
}

void heavy_barrier(bool asymmetric);
bool asymmetric_barriers_available(void);

static inline void crash_order(void)
{
}

static inline void spin_hint(void)
{
}

/* The same for what the core asks of the system: the memory lies where the
 * explorer can put it back, and time stands still. (Locks are words of that
 * memory: system.c stands in for locks.c.) */
void *explore_calloc(size_t n, size_t size);
void *explore_aligned_alloc(size_t alignment, size_t size);
void explore_free(void *p);
long explore_syscall(long number, ...);
int explore_sleep(const struct timespec *time, struct timespec *left);
int explore_clock(int clock, struct timespec *time);
FILE *explore_fopen(const char *path, const char *mode);

#define calloc explore_calloc
#define aligned_alloc explore_aligned_alloc
#define free explore_free
#define syscall explore_syscall
#define nanosleep explore_sleep
#define clock_gettime explore_clock
#define fopen explore_fopen
#define memcpy explore_memcpy

#endif
