/* Waits of one thread for any of several consumers and producers, of one ring or of many.
 *
 * The thread announces a sleep for each of them as if it waited alone (waiter.c). Then it passes one
 * heavy barrier for all, looks at each once more, and sleeps on all of their futexes. The kernel names
 * one futex that was woken, but others may have been, too: so each consumer whose futex has changed
 * passes its wake-up on if it takes nothing. docs/protocol.md, P9.
 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cells.h"
#include "waiter.h"
#include "wake.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

enum {
	WORDS = 128, /* maximum number of futexes in one sleep (the kernel's FUTEX_WAITV_MAX) */
	WORD_32 = 2, /* FUTEX_32, without FUTEX_PRIVATE: shared between processes */
	SPINS = 256, /* maximum number of checks before a sleep, as in wait.c; each look at all waits makes
			`count` checks */
};
/* Longest sleep if one sleep cannot take all futexes: the thread sleeps on some of them, and then checks all
 * waits. So a message for one of the other waits is noticed at most this much later. A choice. */
#define TURN_NS (1000 * 1000LL)

/* struct futex_waitv of linux/futex.h */
struct word {
	uint64_t value;
	uint64_t address;
	uint32_t flags;
	uint32_t reserved;
};

struct any {
	struct shmring_wait *waits;
	uint32_t count;
	uint32_t turn; /* index in `waits` at which the next sleep begins, if one sleep cannot take all waits */
	const uint32_t *bell; /* counter whose change ends the wait; NULL: none */
	uint32_t rung; /* value of the bell that the caller has seen */
};

static struct waiter waiter_of(const struct shmring_wait *w)
{
	return w->consumer ? message_waiter(w->consumer) : space_waiter(w->producer, w->slots, 0);
}

/* Returns the i-th wait, counted from the first of the next sleep. */
static struct shmring_wait *in_turn(const struct any *a, uint32_t i)
{
	return &a->waits[(a->turn + i) % a->count];
}

/* Sets `ready` of each wait: true if the next try of its handle can succeed. Returns true if a wait is ready. */
static bool look(const struct any *a)
{
	bool found = false;

	for (uint32_t i = 0; i < a->count; i++) {
		struct waiter w = waiter_of(&a->waits[i]);

		a->waits[i].ready = ready(&w, w.slots);
		found |= a->waits[i].ready;
	}
	return found;
}

/* Returns true if the bell was rung or one of the handles was interrupted. */
static bool is_called(const struct any *a)
{
	if (a->bell && load_acquire(a->bell) != a->rung)
		return true;
	for (uint32_t i = 0; i < a->count; i++) {
		struct waiter w = waiter_of(&a->waits[i]);

		if (is_interrupted(&w))
			return true;
	}
	return false;
}

/* Returns true if this process can call futex_waitv(2): Linux has it since 5.16, and a sandbox may
 * forbid it. */
static bool has_waitv(void)
{
	enum { UNKNOWN, THERE, MISSING };
	static uint32_t known;

	if (load_relaxed(&known) == UNKNOWN) {
		(void)syscall(SYS_futex_waitv, NULL, 0, 0, NULL, CLOCK_MONOTONIC);
		store_relaxed(&known, errno == EINVAL ? THERE : MISSING);
	}
	return load_relaxed(&known) == THERE;
}

static bool sleep_on(const struct word *words, uint32_t n, int64_t now, int64_t until)
{
	int64_t at = n > 1 ? until : until - now;
	struct timespec timeout = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};

	if (n > 1)
		return syscall(SYS_futex_waitv, words, n, 0, &timeout, CLOCK_MONOTONIC) >= 0;
	/* NOLINTNEXTLINE: the kernel's structure holds addresses as numbers */
	return futex((uint32_t *)(uintptr_t)words[0].address, FUTEX_WAIT, (uint32_t)words[0].value, &timeout) == 0;
}

/* Sleeps once, until `until` at most, unless a wait is ready. Returns false if a signal ended the sleep. */
static bool sleep_for_any(struct any *a, int64_t until)
{
	uint32_t room = has_waitv() ? WORDS - (a->bell != NULL) : 1;
	uint32_t n = a->count < room ? a->count : room;
	bool all = n == a->count && (has_waitv() || !a->bell);
	bool asymmetric = false, woken, interrupted;
	struct word words[WORDS];
	int64_t now = monotonic();

	if (until <= now)
		return true;
	if (!all && until > now + TURN_NS)
		until = now + TURN_NS;
	for (uint32_t i = 0; i < n; i++) {
		struct waiter w = waiter_of(in_turn(a, i));
		uint32_t seen, *word = announce_sleep(&w, w.slots, &seen);

		words[i] = (struct word){.value = seen, .address = (uintptr_t)word, .flags = WORD_32};
		asymmetric |= w.ring->asymmetric;
	}
	if (a->bell && has_waitv())
		words[n] = (struct word){.value = a->rung, .address = (uintptr_t)a->bell, .flags = WORD_32};
	/* One barrier for all rings: the kernel's asymmetric barrier is a fence of this thread, too, and
	 * rings without asymmetric barriers need only that fence. */
	heavy_barrier(asymmetric);
	if (look(a) || is_called(a))
		return true;
	for (uint32_t i = 0; i < n; i++)
		store_relaxed(&waiter_of(in_turn(a, i)).seat->waits, WAIT_ASLEEP);
	woken = sleep_on(words, n + (a->bell && has_waitv()), now, until);
	interrupted = !woken && errno == EINTR;
	for (uint32_t i = 0; i < n; i++) {
		struct waiter w = waiter_of(in_turn(a, i));

		store_relaxed(&w.seat->waits, WAIT_NONE);
		/* A waker changes the futex word first, so a consumer with an unchanged word was not woken. */
		if (woken && w.consumer && load_acquire(&w.consumer->branch->futex.v) != words[i].value &&
		    !is_alone(w.consumer))
			store_relaxed(&w.consumer->woken, true);
	}
	a->turn = (a->turn + n) % a->count;
	return !interrupted;
}

/* Polls until a wait is ready (true), the bell is rung, a handle is interrupted, or the time `until` has come. */
static bool poll_for_any(const struct any *a, enum shmring_look look_again, int64_t until)
{
	for (;;) {
		if (look(a))
			return true;
		if (is_called(a) || monotonic() >= until || !pause_between_looks(look_again))
			return false;
	}
}

static bool spin_on_all(const struct any *a)
{
	for (uint32_t i = 0; i < SPINS; i += a->count) {
		spin_hint();
		if (look(a))
			return true;
	}
	return false;
}

/* Returns true if this process has a signal handler with SA_RESTART. After such a handler the kernel restarts a
 * sleep on several futexes, but not a sleep on one futex. */
static bool has_restarting_handler(void)
{
	struct sigaction action;

	for (int s = 1; s < NSIG; s++)
		if (sigaction(s, NULL, &action) == 0 && action.sa_flags & SA_RESTART &&
		    action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
			return true;
	return false;
}

/* Returns the time at which the thread has to look again, even if nothing wakes it. */
static int64_t end_of_slice(const struct any *a, int64_t start, int64_t deadline, bool sleeps)
{
	int64_t until = deadline;

	for (uint32_t i = 0; i < a->count; i++) {
		struct waiter w = waiter_of(&a->waits[i]);
		int64_t end = slice_end(&w, start);

		if (!w.consumer && nobody_gates(w.ring) && start + UNTOLD_NS < end)
			end = start + UNTOLD_NS;
		if (end < until)
			until = end;
	}
	if (until > start + SLICE_NS && (!sleeps || ((a->count > 1 || a->bell) && has_restarting_handler())))
		return start + SLICE_NS; /* the caller then handles signals, because a signal does not always end
					    the wait */
	return until;
}

/* Ends the wait; the caller then tries the handles that are ready. Also searches the rings of the handles that
 * are not ready for dead participants: perhaps no other process waits there, and this thread may never sleep, if
 * some handle is always ready. Returns true if nothing can come to one of the handles any more (find_lost()). */
static bool leave(const struct any *a, int64_t start)
{
	bool lost = false;

	for (uint32_t i = 0; i < a->count; i++) {
		struct waiter w = waiter_of(&a->waits[i]);

		store_relaxed(&w.memory->took_ns, a->waits[i].ready ? monotonic() - start : IN_VAIN);
		if (a->waits[i].ready)
			continue;
		look_for_all(&w, SLICE_NS);
		if (w.consumer)
			pass_wake_up_on(w.consumer);
		/* A wait on a lost ring is `ready`: the caller tries again, and that try returns the error. */
		lost |= a->waits[i].ready = find_lost(&w);
	}
	return lost;
}

/* CHANGE: edit this for a new option of a ring */
/* CHANGE: edit this for a new wait strategy */
/* CHANGE: edit this for a new counter that each participant has */
static int wait_until_any(struct any *a, int64_t deadline, uint8_t strategy)
{
	const struct shmring_wait_strategy_info *how = &wait_strategies[strategy];
	bool sleeps = how->sleeps;
	int64_t start = monotonic(), until = end_of_slice(a, start, deadline, sleeps);
	bool done = look(a);

	if (!done && !is_called(a)) {
		if (!sleeps)
			done = poll_for_any(a, how->look, until);
		else if (how->look == SHMRING_LOOK_SPIN && until > start)
			done = spin_on_all(a);
		while (sleeps && !done && monotonic() < until) {
			bool slept = sleep_for_any(a, until);

			done = look(a);
			if (!slept || is_called(a))
				break;
		}
	}
	done |= leave(a, start);
	if (done)
		return SHMRING_OK;
	return not_now(monotonic() >= deadline ? SHMRING_TIMEOUT : SHMRING_AGAIN);
}

static int check_waits(const struct shmring_wait *waits, uint32_t count, uint8_t strategy)
{
	if (count == 0 || strategy >= SHMRING_WAIT_STRATEGIES)
		return fail(SHMRING_E_INVALID, "a wait is for at least one, and there is no wait strategy %u",
			    strategy);
	for (uint32_t i = 0; i < count; i++) {
		if (!waits[i].consumer == !waits[i].producer)
			return fail(SHMRING_E_INVALID,
				    "number %u of those to wait for is not one consumer or one producer", i);
		RETURN_NOT_OK(check_usable(waiter_of(&waits[i]).ring));
	}
	return SHMRING_OK;
}

static void count_waiting(const struct any *a, uint32_t by)
{
	for (uint32_t i = 0; i < a->count; i++)
		if (a->waits[i].consumer)
			fetch_add_seq_cst(&a->waits[i].consumer->waiting, by);
}

int shmring_wait_any(struct shmring_wait *waits, uint32_t count, const uint32_t *bell, uint32_t rung,
		     int64_t deadline_ns, uint8_t strategy)
{
	struct any a = {.waits = waits, .count = count, .bell = bell, .rung = rung};
	int status;

	RETURN_NOT_OK(check_waits(waits, count, strategy));
	for (uint32_t i = 0; i < count; i++)
		shmring_consumer_decline(waits[i].consumer);
	count_waiting(&a, 1);
	status = wait_until_any(&a, deadline_ns, strategy);
	count_waiting(&a, (uint32_t)-1);
	return status;
}

void shmring_consumer_decline(shmring_consumer *consumer)
{
	if (consumer && is_owned(consumer->ring))
		pass_wake_up_on(consumer);
}

void shmring_ring_bell(uint32_t *bell)
{
	fetch_add_seq_cst(bell, 1);
	futex(bell, FUTEX_WAKE, INT32_MAX, NULL);
}
