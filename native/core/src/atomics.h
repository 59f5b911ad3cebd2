/* Every access to a shared word goes through this header, so that tests can
 * put an exploring scheduler (native/explore) in its place.
 *
 * Shared words are plain integers in a mapped file; the __atomic builtins give
 * them C11 semantics on every compiler we support. Ordering lives on the
 * access wherever a payload depends on it, because ThreadSanitizer does not see
 * fences; the fences that remain (docs/orderings.md lists them) order words that
 * are atomic themselves.
 */
#ifndef SHMRING_ATOMICS_H
#define SHMRING_ATOMICS_H

#ifdef SHMRING_EXPLORE
#include "explore_atomics.h"
#else

#include <stdbool.h>
#include <stdint.h>

/* CHANGE: edit this for a new memory ordering */
#define load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define fetch_or_seq_cst(p, v) __atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST)
#define fetch_and_seq_cst(p, v) __atomic_fetch_and((p), (v), __ATOMIC_SEQ_CST)
#define fetch_add_seq_cst(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)

static inline bool cas_release(uint64_t *p, uint64_t *expected, uint64_t desired)
{
	return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static inline bool cas_relaxed(uint64_t *p, uint64_t *expected, uint64_t desired)
{
	return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static inline bool cas_seq_cst(uint64_t *p, uint64_t *expected, uint64_t desired)
{
	return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline bool cas32_seq_cst(uint32_t *p, uint32_t *expected, uint32_t desired)
{
	return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline void fence_acquire(void)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static inline void fence_release(void)
{
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void fence_seq_cst(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* light_barrier() and heavy_barrier() are the two halves of a Dekker handshake.
 * Thread A stores X, calls light_barrier(), and loads Y. Thread B stores Y, calls
 * heavy_barrier(), and loads X. At least one of the two sees the other's store.
 *
 * The light half is on the path that runs a million times a second. It is only a
 * compiler barrier, because a full fence there drains the store buffer and costs
 * up to 30 % of the throughput (docs/performance.md, "Barriers"). The heavy half
 * makes up for that: by membarrier(2), it makes every running participant execute
 * a full fence. If a ring was created without membarrier(2), `asymmetric` is
 * false, and both halves are full fences. In C11 terms, both halves are seq_cst
 * fences on every ring. */
static inline void light_barrier(bool asymmetric)
{
	if (__builtin_expect(asymmetric, 1))
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
	else
		fence_seq_cst();
}

void heavy_barrier(bool asymmetric);
bool asymmetric_barriers_available(void);

/* Keeps the compiler from reordering this thread's stores; the CPU still may. This
 * is enough for words that another process reads only after this process has died:
 * all retired stores of a killed thread become visible before the kernel drops the
 * thread's locks. */
static inline void crash_order(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void spin_hint(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

#endif /* SHMRING_EXPLORE */
#endif
