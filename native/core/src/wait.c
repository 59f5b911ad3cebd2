/* Waiting.
 *
 * A sleeper announces itself, passes a heavy barrier, looks once more, and
 * sleeps; whoever changes something passes a light barrier and looks for
 * sleepers (wake.h). Should a waker die between its change and the wake-up, the
 * sleep ends by itself after SLICE_NS. docs/protocol.md, P9.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <time.h>

#include "cells.h"
#include "clock.h"
#include "distance.h"
#include "end.h"
#include "error.h"
#include "floor.h"
#include "wake.h"

/* Half of the promised 100 ms. Of those who sleep one looks for the dead, at the
 * end of each such slice; the others sleep longer, SHARE_NS for each of them, so
 * that one of them is soon there should the one who looked be gone. */
#define SLICE_NS (50 * 1000 * 1000LL)
#define SHARE_NS (20 * 1000 * 1000LL)
/* Where no branch gates, nobody tells a producer that another's claim, which
 * is in its way, has been published. */
#define UNTOLD_NS (1000 * 1000LL)
/* Of those who spin one looks this often, or so that it costs a fiftieth of its time. */
#define SPIN_LOOK_NS (500 * 1000LL)
#define SPIN_LOOK_SHARE 50
/* The default: a few microseconds of spinning; and up to HOPEFUL_NS, about what
 * a sleep and its wake-up cost both sides, if the wait before was no longer than
 * that. A stream of 1 MB batches runs 1.35 x as fast for it. */
#define DEFAULT_SPINS 256
#define DEFAULT_YIELDS 4
#define HOPEFUL_NS (50 * 1000LL)
#define IN_VAIN INT64_MAX
/* An answer that comes within a microsecond is not to wait for the clock. */
#define CLOCKLESS_SPINS 32
#define BATCH_NS (1000 * 1000LL) /* how long a producer insists on a batch of free slots */

struct waiter {
	shmring *ring;
	struct seat *seat; /* whose owner waits; NULL: a handle */
	struct shmring_consumer *consumer; /* who waits for a message */
	const struct branch *releasing; /* who waits for what this branch releases; neither: a producer */
	uint64_t slots; /* that a producer needs; what is to be released */
	uint64_t batch; /* what a producer would rather have, see below */
	const bool *interrupted;
	struct wait_memory *memory;
};

static bool is_interrupted(const struct waiter *w)
{
	return w->interrupted && load_relaxed(w->interrupted);
}

static uint64_t floor_needed(const struct waiter *w, uint64_t slots)
{
	uint64_t end = load_relaxed(&w->ring->cursors->claim.v) + slots;

	if (w->releasing)
		return slots;
	return end > w->ring->capacity ? end - w->ring->capacity : 0;
}

static bool ready(const struct waiter *w, uint64_t slots)
{
	shmring *r = w->ring;

	if (w->consumer) {
		const struct branch *b = w->consumer->branch;

		if (has_news(w->consumer))
			return true;
		return (consumer_is_ended(w->consumer, load_acquire(&b->taken.v) >> 8) || has_work(r, b)) &&
		       !end_has_to_wait(w->consumer);
	}
	if (w->releasing)
		return load_relaxed(&w->releasing->d.state) != BRANCH_ACTIVE ||
		       branch_released(r, w->releasing, false) >= slots;

	uint64_t need = floor_needed(w, slots);

	return load_relaxed(&r->cursors->floor.v) >= need || floor_advance(r, need) >= need;
}

static void lower_to(uint64_t *word, uint64_t value)
{
	uint64_t seen = load_relaxed(word);

	while (seen > value && !cas_seq_cst(word, &seen, value))
		;
}

/* Nobody else can have slept on this branch: no other consumer, and no other thread of
 * this one. Whoever slept when this one was woken had joined, and waited, before. */
static bool is_alone(const shmring_consumer *m)
{
	const struct branch *b = m->branch;
	int consumers = 0;

	for (int word = 0; word < 4; word++)
		consumers += __builtin_popcountll(load_relaxed(&b->d.consumers[word]));
	return consumers == 1 && load_relaxed(&m->waiting) == 1;
}

/* False if a signal ended it. */
static bool sleep_once(const struct waiter *w, uint64_t slots, int64_t ns)
{
	struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	struct cursors *c = w->ring->cursors;
	uint32_t *word;
	uint32_t seen;
	bool woken, interrupted;

	if (ns <= 0)
		return true;
	if (w->consumer) {
		word = &w->consumer->branch->futex.v;
		seen = load_acquire(word);
		fetch_or_seq_cst(&c->asleep.v, UINT64_C(1) << w->consumer->branch_index);
	} else {
		word = &c->producers.futex;
		seen = fetch_or_seq_cst(word, 1) | 1;
		lower_to(&c->producers.wanted, floor_needed(w, slots)); /* the least wish of all */
	}
	heavy_barrier(w->ring->asymmetric);
	if (ready(w, slots) || is_interrupted(w))
		return true;
	if (w->seat)
		store_relaxed(&w->seat->waits, WAIT_ASLEEP);
	woken = futex(word, FUTEX_WAIT, seen, &timeout) == 0;
	interrupted = !woken && errno == EINTR;
	if (w->seat)
		store_relaxed(&w->seat->waits, WAIT_NONE);
	if (woken && w->consumer && !is_alone(w->consumer))
		store_relaxed(&w->consumer->woken, true);
	return !interrupted;
}

/* --- one looks for all ---------------------------------------------------------- */

/* Who should have been woken by somebody that died, or was stopped, before it came
 * to that. The words of sleepers may have been cleared already. */
static void wake_the_forgotten(shmring *r)
{
	struct cursors *c = r->cursors;

	for (uint32_t id = 0; id < BRANCHES; id++) {
		struct branch *b = &c->branch[id];
		bool active = load_acquire(&b->d.state) == BRANCH_ACTIVE;

		if (has_consumers(b) && (!active || has_work(r, b)))
			wake(b, active ? 1 : INT_MAX);
	}
	if (load_acquire(&c->producers.futex) & 1) {
		uint64_t wanted = load_relaxed(&c->producers.wanted);

		if (wanted == NONE || everybody_released(r, wanted))
			wake_producers(r);
	} else {
		futex(&c->producers.futex, FUTEX_WAKE, INT_MAX, NULL);
	}
}

static uint64_t count_sleepers(const shmring *r)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < r->seat_count; i++)
		n += load_relaxed(&r->seats[i].waits) == WAIT_ASLEEP &&
		     load_relaxed(&r->seats[i].id.state) == SEAT_ACTIVE;
	return n;
}

/* The time since anybody's last look; huge where the clock of a process in another
 * time namespace has been there. */
static uint64_t since_last_look(const shmring *r, int64_t now)
{
	return (uint64_t)now - LOOK_TIME(load_relaxed(&r->cursors->look.v));
}

/* Looks for the dead unless somebody else has done so. By the clock and not by the
 * slice: short time-outs, and wake-ups by messages behind a hole, must not keep a
 * waiter from ever looking. */
static void look_for_all(const struct waiter *w, int64_t interval)
{
	shmring *r = w->ring;
	uint64_t *look = &r->cursors->look.v;
	uint64_t seen = load_relaxed(look);
	int64_t now = monotonic();

	store_relaxed(&w->memory->looks, false);
	if ((uint64_t)now - LOOK_TIME(seen) < (uint64_t)interval ||
	    !cas_seq_cst(look, &seen, LOOK_TIME((uint64_t)now) | LOOK_SLEEPERS(seen)))
		return;
	(void)shmring_recover(r, NULL);
	wake_the_forgotten(r);
	store_relaxed(look, LOOK_TIME((uint64_t)now) | count_sleepers(r));
	store_relaxed(&w->memory->looks, true);
	store_relaxed(&w->memory->look_ns, monotonic() - now);
}

/* How long to sleep at most. A signal that comes between the caller's look for one and
 * the sleep does not end the sleep: none is longer than what has been waited so far. */
static int64_t slice(const struct waiter *w, int64_t now)
{
	uint64_t age = since_last_look(w->ring, now);
	int64_t share = (int64_t)LOOK_SLEEPERS(load_relaxed(&w->ring->cursors->look.v)) * SHARE_NS;
	int64_t waited = now - load_relaxed(&w->memory->since_ns);

	if (age >= SLICE_NS || w->releasing) /* the forgotten among the latter nobody finds */
		return SLICE_NS;
	if (share <= SLICE_NS || waited <= SLICE_NS || load_relaxed(&w->memory->looks))
		return SLICE_NS - (int64_t)age;
	/* Apart from each other, by the seat: three quarters to five quarters of it. */
	share =
	    share * 3 / 4 + (int64_t)((uintptr_t)w->seat / sizeof *w->seat * 40503 % 65536) * (share / 2) / 65536;
	return share < waited ? share : waited;
}

/* --- waiting ---------------------------------------------------------------------- */

/* Spins (or yields, or naps) until ready, a deadline, or `until`. */
static bool poll_until(const struct waiter *w, uint8_t strategy, int64_t until)
{
	for (unsigned i = 1;; i++) {
		if (ready(w, w->slots))
			return true;
		if (is_interrupted(w))
			return false;
		if (strategy == SHMRING_WAIT_SPIN)
			spin_hint();
		else if (strategy == SHMRING_WAIT_YIELD)
			sched_yield();
		else
			nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
		if (strategy != SHMRING_WAIT_SPIN || i % 64 == 0) {
			int64_t interval = load_relaxed(&w->memory->look_ns) * SPIN_LOOK_SHARE;

			if (monotonic() >= until)
				return false;
			look_for_all(w, interval < SPIN_LOOK_NS ? SPIN_LOOK_NS
					: interval < SLICE_NS   ? interval
								: SLICE_NS);
		}
	}
}

static bool spin(const struct waiter *w, uint64_t slots, int times)
{
	for (int i = 0; i < times; i++) {
		spin_hint();
		if (ready(w, slots))
			return true;
	}
	return false;
}

/* A producer that finds the ring full waits for a batch first: one that fills each slot
 * as soon as it is free fights the reader for the lines that both use, and a stream
 * through 4,096 slots is a third as fast. */
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
		sched_yield(); /* to the other side, should there be more processes than cores */
		if (spin(w, w->batch, 8))
			return true;
	}
	return false;
}

static int wait_until(const struct waiter *w, int64_t deadline, uint8_t strategy)
{
	int status = check_usable(w->ring);
	bool interrupted = false;
	int64_t start, until;
	bool done;

	if (status)
		return status;
	if (strategy >= SHMRING_WAIT_STRATEGIES)
		return fail(SHMRING_E_INVALID, "ring \"%s\": there is no wait strategy %u", w->ring->name,
			    strategy);
	if (w->consumer && (strategy == SHMRING_WAIT_DEFAULT || strategy == SHMRING_WAIT_SPIN) &&
	    stays_away(w->consumer))
		keep_away();
	if (ready(w, w->slots) || (strategy == SHMRING_WAIT_SPIN && spin_clockless(w))) {
		if (load_relaxed(&w->memory->took_ns) == IN_VAIN) /* what came ended that */
			store_relaxed(&w->memory->took_ns, HOPEFUL_NS);
		return SHMRING_OK;
	}
	start = monotonic();
	if (load_relaxed(&w->memory->took_ns) != IN_VAIN)
		store_relaxed(&w->memory->since_ns, start);
	until = start + slice(w, start);
	if (w->consumer && load_relaxed(&w->consumer->branch->d.orphans) && w->consumer->adopt_after_ns < until)
		until = w->consumer->adopt_after_ns;
	if (deadline < until)
		until = deadline;
	if (strategy == SHMRING_WAIT_SPIN || strategy == SHMRING_WAIT_YIELD || strategy == SHMRING_WAIT_SLEEP) {
		done = poll_until(w, strategy, until);
	} else {
		/* A full ring and a steady reader: a producer waits for a sixteenth
		 * of the ring, not for each slot; but it does not insist for long. */
		done = strategy == SHMRING_WAIT_DEFAULT && load_relaxed(&w->memory->took_ns) != IN_VAIN &&
		       spin_before_sleeping(w, start);
		if (!done && !w->consumer && !w->releasing && until > start) {
			interrupted =
			    !sleep_once(w, w->batch, until - start < BATCH_NS ? until - start : BATCH_NS);
			done = ready(w, w->slots);
			if (nobody_gates(w->ring) && until > start + UNTOLD_NS)
				until = start + UNTOLD_NS;
		}
		if (!done && !interrupted && monotonic() < until) {
			(void)sleep_once(w, w->slots, until - monotonic());
			done = ready(w, w->slots);
		}
	}
	store_relaxed(&w->memory->took_ns, done ? monotonic() - start : IN_VAIN);
	if (done)
		return SHMRING_OK;
	look_for_all(w, SLICE_NS);
	if (w->consumer)
		pass_wake_up_on(w->consumer); /* the caller may leave it at this */
	return not_now(monotonic() >= deadline ? SHMRING_TIMEOUT : SHMRING_AGAIN);
}

int shmring_wait_space(shmring_producer *p, uint64_t slots, int64_t deadline_ns, uint8_t strategy)
{
	uint64_t batch = p->ring->capacity / 16;
	struct waiter w = {.ring = p->ring,
			   .seat = p->seat,
			   .slots = slots,
			   .batch = slots > batch ? slots : batch,
			   .interrupted = &p->interrupted,
			   .memory = &p->wait};

	return wait_until(&w, deadline_ns, strategy);
}

int shmring_wait_message(shmring_consumer *m, int64_t deadline_ns, uint8_t strategy)
{
	struct waiter w = {.ring = m->ring,
			   .seat = m->seat,
			   .consumer = m,
			   .slots = 1,
			   .batch = 1,
			   .interrupted = &m->interrupted,
			   .memory = &m->wait};
	int status;

	fetch_add_seq_cst(&m->waiting, 1);
	status = wait_until(&w, deadline_ns, strategy);
	fetch_add_seq_cst(&m->waiting, -1);
	return status;
}

/* The flag, a light barrier, then who sleeps: as with any change that ends a sleep. */
void shmring_producer_interrupt(shmring_producer *p, bool on)
{
	store_relaxed(&p->interrupted, on);
	if (on && is_owned(p->ring))
		wake_producers(p->ring);
}

void shmring_consumer_interrupt(shmring_consumer *m, bool on)
{
	store_relaxed(&m->interrupted, on);
	light_barrier(m->ring->asymmetric);
	if (on && is_owned(m->ring) && load_relaxed(&m->waiting))
		wake(m->branch, INT_MAX); /* whoever of them did not mean it sleeps again */
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
		/* What was seen as released may be another branch's by now. Its `first`
		 * was stored before its `state`: whoever sees the one sees the other. */
		if (status || (load_acquire(&w.releasing->d.state) == BRANCH_ACTIVE &&
			       load_relaxed(&w.releasing->d.first) < sequence))
			return status;
	}
	return fail(SHMRING_E_NO_BRANCH, "ring \"%s\" has no branch number %u that had to release this", r->name,
		    branch);
}
