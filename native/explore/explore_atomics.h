/* Stands in for atomics.h: every access to a shared word asks the explorer
 * first, which may let another thread go on instead. What is explored this way
 * is sequentially consistent: orderings and barriers mean nothing here. */
#ifndef EXPLORE_ATOMICS_H
#define EXPLORE_ATOMICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Before an access: returns when it is this thread's turn. */
void explore_point(const volatile void *address, const char *function, int line);
/* Before the word takes another value; a store of the same value is a read. False
 * if it is to keep its value. */
bool explore_changes(const volatile void *address);

#define EXPLORE_AT(p) explore_point((p), __func__, __LINE__)
#define EXPLORE_LOAD(p) (*(const volatile __typeof__(*(p)) *)(p))

#define EXPLORE_SET(p, value)                                                                                     \
	do {                                                                                                      \
		if (EXPLORE_LOAD(p) != (value) && explore_changes(p))                                             \
			*(volatile __typeof__(p))(p) = (value);                                                   \
	} while (0)

/* The operand first: it may be an access itself. */
#define EXPLORE_STORE(p, v)                                                                                       \
	({                                                                                                        \
		__typeof__(*(p)) explore_v = (__typeof__(*(p)))(v);                                               \
		EXPLORE_AT(p);                                                                                    \
		EXPLORE_SET(p, explore_v);                                                                        \
	})

#define EXPLORE_FETCH(p, operator, v)                                                                             \
	({                                                                                                        \
		__typeof__(*(p)) explore_v = (__typeof__(*(p)))(v);                                               \
		EXPLORE_AT(p);                                                                                    \
		__typeof__(*(p)) explore_old = EXPLORE_LOAD(p);                                                   \
		explore_v = (__typeof__(*(p)))(explore_old operator explore_v);                                   \
		EXPLORE_SET(p, explore_v);                                                                        \
		explore_old;                                                                                      \
	})

#define EXPLORE_CAS(p, expected, desired)                                                                         \
	({                                                                                                        \
		__typeof__(*(p)) explore_v = (desired);                                                           \
		EXPLORE_AT(p);                                                                                    \
		bool explore_same = EXPLORE_LOAD(p) == *(expected);                                               \
		if (explore_same)                                                                                 \
			EXPLORE_SET(p, explore_v);                                                                \
		else                                                                                              \
			*(expected) = EXPLORE_LOAD(p);                                                            \
		explore_same;                                                                                     \
	})

#define load_relaxed(p) (EXPLORE_AT(p), EXPLORE_LOAD(p))
#define load_acquire(p) load_relaxed(p)
#define store_relaxed(p, v) EXPLORE_STORE(p, v)
#define store_release(p, v) EXPLORE_STORE(p, v)
#define fetch_or_seq_cst(p, v) EXPLORE_FETCH(p, |, v)
#define fetch_and_seq_cst(p, v) EXPLORE_FETCH(p, &, v)
#define fetch_add_seq_cst(p, v) EXPLORE_FETCH(p, +, v)
#define cas_acq_rel(p, expected, desired) EXPLORE_CAS(p, expected, desired)
#define cas_seq_cst(p, expected, desired) EXPLORE_CAS(p, expected, desired)
#define cas32_seq_cst(p, expected, desired) EXPLORE_CAS(p, expected, desired)

static inline void light_barrier(bool asymmetric)
{
	(void)asymmetric;
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

#endif
