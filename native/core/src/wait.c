/* Waits: spin, then sleep, and now and then look for dead participants. waiter.c has the functions for the
 * steps of a wait: check its condition, sleep once, look once. docs/protocol.md, P9.
 */
#include <limits.h>
#include <sched.h>
#include <time.h>

#include "cells.h"
#include "holder.h"
#include "waiter.h"
#include "wake.h"

/* How often one spinning waiter looks for dead participants: every 500 us, or less often if looks
 * would take more than 1/50 of its time. Both numbers are choices: deaths have to be seen within 100 ms. */
#define SPIN_LOOK_NS (500 * 1000LL)
#define SPIN_LOOK_SHARE 50
/* The default strategy spins for some ten microseconds before it sleeps: 256 checks take 9 us, and four yields
 * 4 us, on an AMD EPYC. This time is a choice, about a fifth of HOPEFUL_NS. If the previous wait was shorter than
 * HOPEFUL_NS, the strategy spins for up to HOPEFUL_NS, about the time that a sleep and its wake-up cost both
 * sides. The longer spin makes a stream of 1 MB batches 1.35 times as fast. */
#define DEFAULT_SPINS 256
#define DEFAULT_YIELDS 4
#define HOPEFUL_NS (50 * 1000LL)
/* Number of checks before a wait first reads the clock. An answer that comes within a microsecond is then not
 * delayed by the clock: a round trip of 8 bytes takes 5 % less time. */
#define CLOCKLESS_SPINS 32
/* Longest time for which a producer waits for a batch of free slots, although it needs fewer slots: a choice. With
 * such waits, single messages pass 2.5 to 3.3 times as fast through rings of 1,024 and 4,096 slots. */
#define BATCH_NS (1000 * 1000LL)

/* --- how far behind the producers a consumer waits ------------------------------------ */

/* Before a wait, a consumer keeps away from the ring for up to two microseconds, or up to four if
 * the ring has several branches, as long as keeping away pays. A consumer that keeps away does not
 * sleep. It needs no wake-up: it checks again by itself, and then waits like any other.
 *
 * A consumer that polls close behind a producer competes with the producer for the cache lines
 * that the producer writes: both are slow, and the more consumers poll, the slower. A consumer
 * that keeps away finds several messages, unless the producer waits for its answer or sends
 * seldom. The number of messages that its branch takes until its next wait shows which case it is. */
enum {
	FEW = 3, /* keeping away from the ring pays if the branch takes at least so many messages between two
		    waits; it takes 1 if the producer waits for an answer to each message */
	MANY = 32, /* if the branch takes at least so many messages between two waits, keeping away longer would
		      gain nothing; a choice */
	LEAST_NS = 250, /* shortest time, in nanoseconds, that a consumer keeps away from the ring; a choice */
	/* Longest time, in nanoseconds, that a consumer keeps away from a ring with one branch. In every ring, a
	 * consumer first tries this time. FEW messages arrive in it even while eight branches poll, at 1.5 M
	 * messages/s. LEAST_NS would be too short for a first try: on sixteen cores, while four branches poll,
	 * fewer than FEW messages arrive within 250 ns, and keeping away would seem not to pay. */
	MOST_NS = 2000,
	MOST_OF_SEVERAL_NS = 4000, /* the same for a ring with several branches: eight branches get 9 M messages/s
				      on 16 cores, but 6 M with MOST_NS */
	WAITS = 16, /* number of waits until a consumer tries again to keep away from the ring; doubled after
		       each try that did not pay; a choice */
	MOST_FAILURES = 10, /* largest number of times that the waits between two tries to keep away are doubled:
			       the consumer then tries once in 16,384 waits; a choice */
};

/* Returns MANY, or in a small ring a sixteenth of its slots: a consumer must not keep away from the ring for so
 * long that the ring fills and the producers wait. */
static uint64_t many(const shmring *r)
{
	return r->capacity < 16 * MANY ? r->capacity / 16 : MANY;
}

static uint32_t most_ns(const shmring *r)
{
	uint64_t active = load_relaxed(&r->cursors->graph.active);

	return active & (active - 1) ? MOST_OF_SEVERAL_NS : MOST_NS;
}

static uint32_t changed(const shmring *r, uint32_t away_ns, uint64_t got)
{
	uint32_t most = most_ns(r);

	if (got < many(r))
		return away_ns < most ? away_ns * 2 : most;
	return got > 4 * many(r) && away_ns > LEAST_NS ? away_ns / 2 : away_ns;
}

/* Returns the nanoseconds to keep away from the ring before this wait; 0: not at all. */
static uint32_t time_away(shmring_consumer *consumer)
{
	struct distance *d = &consumer->distance;
	uint32_t away_ns = load_relaxed(&d->away_ns);
	uint32_t waits = load_relaxed(&d->waits) + 1;
	uint64_t taken;

	if (!away_ns && waits < (uint32_t)WAITS << load_relaxed(&d->failures)) {
		store_relaxed(&d->waits, waits);
		return 0;
	}
	taken = load_relaxed(&consumer->branch->taken.v) >> 8;
	if (!away_ns) {
		away_ns = MOST_NS;
	} else if (taken - load_relaxed(&d->taken) >= FEW) {
		away_ns = changed(consumer->ring, away_ns, taken - load_relaxed(&d->taken));
		store_relaxed(&d->failures, 0);
	} else {
		away_ns = 0;
		store_relaxed(&d->waits, 0);
		if (load_relaxed(&d->failures) < MOST_FAILURES)
			store_relaxed(&d->failures, load_relaxed(&d->failures) + 1);
	}
	store_relaxed(&d->taken, taken);
	store_relaxed(&d->away_ns, away_ns);
	return away_ns;
}

/* Keeps a consumer away from the ring before a wait, if that pays. */
static void keep_away(shmring_consumer *consumer)
{
	uint32_t away_ns = time_away(consumer);

	if (away_ns)
		for (int64_t until = monotonic() + away_ns; monotonic() < until;)
			for (int i = 0; i < 4; i++)
				spin_hint();
}

/* --- one wait ------------------------------------------------------------------------- */

/* Spins (or yields, or naps) until the waiter is ready (true), is interrupted, or the time `until` has come. */
static bool poll_until(const struct waiter *w, enum shmring_look look, int64_t until)
{
	for (unsigned i = 1;; i++) {
		if (ready(w, w->slots))
			return true;
		if (is_interrupted(w) || !pause_between_looks(look))
			return false;
		/* CHANGE: edit this for a new wait strategy */
		if (look != SHMRING_LOOK_SPIN || i % 64 == 0) {
			int64_t interval = load_relaxed(&w->memory->look_ns) * SPIN_LOOK_SHARE;

			if (monotonic() >= until)
				return false;
			look_for_all(w, interval < SPIN_LOOK_NS ? SPIN_LOOK_NS
					: interval < SLICE_NS   ? interval
								: SLICE_NS);
		}
	}
}

/* Returns the address of the next message if its producer seems to wait for an answer to each message, which is
 * assumed if keeping away from the ring did not pay. The caller prefetches the message's first cache line while it
 * waits for the message's entry, so that both lines come at once: a round trip takes 4.1 times as long as the
 * transfer of a line, instead of 5.4. Returns NULL for other consumers, because a prefetch would take the line
 * from a producer that fills it. */
static const uint8_t *awaited(const struct waiter *w)
{
	if (!w->consumer || !load_relaxed(&w->consumer->distance.failures))
		return NULL;
	return slot_at(w->ring, load_relaxed(&w->consumer->branch->taken.v) >> 8);
}

static bool spin(const struct waiter *w, uint64_t slots, int times)
{
	const uint8_t *line = awaited(w);

	for (int i = 0; i < times; i++) {
		spin_hint();
		if (line)
			__builtin_prefetch(line);
		if (ready(w, slots))
			return true;
	}
	return false;
}

/* Spins for a moment without reading the clock. A producer on a full ring waits for a batch of
 * free slots first: a producer that fills each slot as soon as it is free fights the reader for
 * the cache lines that both use, and a stream through 4,096 slots is a third as fast. */
static bool spin_clockless(const struct waiter *w)
{
	if (w->consumer || w->releasing)
		return spin(w, w->slots, CLOCKLESS_SPINS);
	return spin(w, w->batch, DEFAULT_SPINS) || ready(w, w->slots);
}

static bool spin_before_sleeping(const struct waiter *w, int64_t start)
{
	bool hopeful = load_relaxed(&w->memory->took_ns) < HOPEFUL_NS;

	if (ready(w, w->batch) || spin(w, w->batch, DEFAULT_SPINS))
		return true;
	for (int i = 0; i < DEFAULT_YIELDS || (hopeful && monotonic() - start < HOPEFUL_NS); i++) {
		sched_yield(); /* lets the other side run if there are more processes than cores */
		if (spin(w, w->batch, 8))
			return true;
	}
	return false;
}

/* CHANGE: edit this for a new wait strategy */
static bool spin_and_sleep(const struct waiter *w, enum shmring_look look, int64_t start, int64_t until)
{
	bool interrupted = false;

	if (look == SHMRING_LOOK_SPIN && load_relaxed(&w->memory->took_ns) != IN_VAIN &&
	    spin_before_sleeping(w, start))
		return true;
	/* A producer on a full ring first waits, for BATCH_NS at most, for a batch of slots, a sixteenth of the
	 * ring: so a steady reader need not wake the producer for each slot. */
	if (!w->consumer && !w->releasing && until > start) {
		interrupted = !sleep_once(w, w->batch, until - start < BATCH_NS ? until - start : BATCH_NS);
		if (ready(w, w->slots))
			return true;
		if (nobody_gates(w->ring) && until > start + UNTOLD_NS)
			until = start + UNTOLD_NS;
	}
	if (interrupted || monotonic() >= until)
		return false;
	(void)sleep_once(w, w->slots, until - monotonic());
	return ready(w, w->slots);
}

/* CHANGE: edit this for a new counter that each participant has */
/* Ends a wait in which nothing came: looks for dead participants, passes a wake-up on to another consumer
 * (because the caller may never wait again), and returns the status of the wait. */
static int waited_in_vain(const struct waiter *w, int64_t deadline)
{
	look_for_all(w, SLICE_NS);
	if (w->consumer)
		pass_wake_up_on(w->consumer); /* perhaps the caller waits no more */
	if (w->releasing)
		RETURN_NOT_OK(check_named(w->ring, NULL));
	/* Return OK although nothing came: the caller then tries again, and gets the error of a lost ring. */
	if (!w->releasing && find_lost(w))
		return SHMRING_OK;
	return not_now(monotonic() >= deadline ? SHMRING_TIMEOUT : SHMRING_AGAIN);
}

/* CHANGE: edit this for a new option of a ring */
static int wait_until(const struct waiter *w, int64_t deadline, uint8_t strategy)
{
	const struct shmring_wait_strategy_info *how = shmring_describe_wait(strategy);
	int64_t start, until;
	bool done;

	RETURN_NOT_OK(check_usable(w->ring));
	if (!how)
		return fail(SHMRING_E_INVALID, "ring \"%s\": there is no wait strategy %u", w->ring->name,
			    strategy);
	/* CHANGE: edit this for a new wait strategy */
	if (w->consumer && how->look == SHMRING_LOOK_SPIN)
		keep_away(w->consumer);
	if (ready(w, w->slots) || (how->look == SHMRING_LOOK_SPIN && !how->sleeps && spin_clockless(w))) {
		/* A success ends a series of waits in vain: the next wait may spin before it sleeps. */
		if (load_relaxed(&w->memory->took_ns) == IN_VAIN)
			store_relaxed(&w->memory->took_ns, HOPEFUL_NS);
		return SHMRING_OK;
	}
	start = monotonic();
	until = slice_end(w, start);
	/* A signal does not end polling, so a slice of polling ends early: the caller can then handle signals. */
	if (!how->sleeps && start + SLICE_NS < until)
		until = start + SLICE_NS;
	if (deadline < until)
		until = deadline;
	done = how->sleeps ? spin_and_sleep(w, how->look, start, until) : poll_until(w, how->look, until);
	store_relaxed(&w->memory->took_ns, done ? monotonic() - start : IN_VAIN);
	return done ? SHMRING_OK : waited_in_vain(w, deadline);
}

int shmring_wait_space(shmring_producer *p, uint64_t slots, int64_t deadline_ns, uint8_t strategy)
{
	struct waiter w = space_waiter(p, slots, p->ring->capacity / 16);

	return wait_until(&w, deadline_ns, strategy);
}

int shmring_wait_message(shmring_consumer *consumer, int64_t deadline_ns, uint8_t strategy)
{
	struct waiter w = message_waiter(consumer);
	int status;

	fetch_add_seq_cst(&consumer->waiting, 1);
	status = wait_until(&w, deadline_ns, strategy);
	fetch_add_seq_cst(&consumer->waiting, -1);
	return status;
}

/* Sets the flag, passes a light barrier (in wake_producers()), and wakes sleepers. Every change that
 * ends a sleep keeps this order (wake.h). */
void shmring_producer_interrupt(shmring_producer *p, bool on)
{
	store_relaxed(&p->interrupted, on);
	if (on && is_owned(p->ring))
		wake_producers(p->ring);
}

/* A branch has one futex, so an interrupt of one consumer wakes all consumers of the branch. */
void shmring_consumer_interrupt(shmring_consumer *consumer, bool on)
{
	store_relaxed(&consumer->interrupted, on);
	light_barrier(consumer->ring->asymmetric);
	if (on && is_owned(consumer->ring) && load_relaxed(&consumer->waiting))
		wake(consumer->branch, INT_MAX); /* wakes all: the other consumers sleep again */
}

int shmring_wait_released(shmring *r, uint32_t branch, uint64_t sequence, int64_t deadline_ns, uint8_t strategy)
{
	struct wait_memory memory = {.took_ns = HOPEFUL_NS};
	struct waiter w = {.ring = r, .slots = sequence, .batch = sequence, .memory = &memory};
	int status;

	if (r->read_only)
		return fail(SHMRING_E_PERMISSION, "ring \"%s\" was attached read-only", r->name);
	if (branch < BRANCHES) {
		w.releasing = &r->cursors->branch[branch];
		status = wait_until(&w, deadline_ns, strategy);
		/* By now the branch's number may belong to a later branch, and the wait may have seen a release of
		 * the later branch. So the wait succeeds only if the branch that has the number is active and
		 * began before `sequence`. `first` is stored before `state`: a reader that sees the branch active
		 * (acquire) sees its `first`. */
		if (status || (load_acquire(&w.releasing->d.state) == BRANCH_ACTIVE &&
			       load_relaxed(&w.releasing->d.first) < sequence))
			return status;
	}
	return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %u that had to release this", r->name,
		    branch);
}
