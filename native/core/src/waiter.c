/* Waiters: the condition of a wait, one sleep, and the looks for dead participants.
 *
 * A sleeper announces itself, passes a heavy barrier, looks once more, and
 * sleeps. A process that changes something passes a light barrier and looks for
 * sleepers (wake.h). If it dies between the change and the wake-up, the
 * sleep ends by itself after SLICE_NS. docs/protocol.md, P9.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>

#include "cells.h"
#include "holder.h"
#include "waiter.h"
#include "wake.h"

/* CHANGE: edit this for a new wait strategy */
const struct shmring_wait_strategy_info wait_strategies[] = {
    [SHMRING_WAIT_DEFAULT] = {"default", SHMRING_LOOK_SPIN, true},
    [SHMRING_WAIT_SPIN] = {"spin", SHMRING_LOOK_SPIN, false},
    [SHMRING_WAIT_YIELD] = {"yield", SHMRING_LOOK_YIELD, false},
    [SHMRING_WAIT_SLEEP] = {"sleep", SHMRING_LOOK_NAP, false},
    [SHMRING_WAIT_FUTEX] = {"futex", SHMRING_LOOK_NEVER, true},
};
static_assert(sizeof wait_strategies / sizeof *wait_strategies == SHMRING_WAIT_STRATEGIES, "a row for each");

const struct shmring_wait_strategy_info *shmring_describe_wait(uint8_t strategy)
{
	return strategy < SHMRING_WAIT_STRATEGIES ? &wait_strategies[strategy] : NULL;
}

/* One sleeper of a ring looks for dead participants, at the end of each SLICE_NS. The other
 * sleepers sleep longer: SHARE_NS times the number of sleepers, so that one of them soon takes
 * over if the sleeper that looked is gone. 20 ms is a choice: all of them together wake up 50 times a second. */
#define SHARE_NS (20 * 1000 * 1000LL)
/* Time after which waits that have brought nothing check whether the ring is lost. The time is a choice: it is
 * long, because each check takes system calls. */
#define LONG_NS (1000 * 1000 * 1000LL)

bool is_interrupted(const struct waiter *w)
{
	return w->interrupted && load_relaxed(w->interrupted);
}

/* CHANGE: edit this for a new option of a ring */
static uint64_t floor_needed(const struct waiter *w, uint64_t slots)
{
	uint64_t end = load_relaxed(&w->ring->cursors->claim.v) + slots;

	if (w->releasing)
		return slots;
	return end > w->ring->capacity ? end - w->ring->capacity : 0;
}

/* CHANGE: edit this for a new error */
/* Returns true if a consumer has something to do besides new messages: its branch was dropped, or
 * there are messages to deliver again. */
static bool has_news(const shmring_consumer *consumer)
{
	const struct branch *b = consumer->branch;

	return load_relaxed(&b->d.state) != BRANCH_ACTIVE ||
	       (load_relaxed(&b->d.orphans) && may_adopt(consumer)) || load_relaxed(&consumer->gives_again);
}

/* CHANGE: edit this for a new error */
bool ready(const struct waiter *w, uint64_t slots)
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

/* Returns true if no other thread can have slept on this consumer's branch when this thread was woken:
 * no other consumer has joined the branch, and no other thread waits in this consumer. A sleeper joins,
 * and counts itself in `waiting`, before it sleeps, so no sleeper is overlooked. */
bool is_alone(const shmring_consumer *consumer)
{
	const struct branch *b = consumer->branch;
	int consumers = 0;

	for (int word = 0; word < 4; word++)
		consumers += __builtin_popcountll(load_relaxed(&b->d.consumers[word]));
	return consumers == 1 && load_relaxed(&consumer->waiting) == 1;
}

/* Announces a sleep; the caller passes a heavy barrier next. Returns the futex word to sleep on, and
 * in *seen the value that the word must still have when the sleep begins. */
uint32_t *announce_sleep(const struct waiter *w, uint64_t slots, uint32_t *seen)
{
	struct cursors *c = w->ring->cursors;
	uint32_t *word;

	if (w->consumer) {
		word = &w->consumer->branch->futex.v;
		*seen = load_acquire(word);
		fetch_or_seq_cst(&c->asleep.v, UINT64_C(1) << w->consumer->branch_index);
	} else {
		word = &c->producers.futex;
		*seen = fetch_or_seq_cst(word, 1) | 1;
		lower_to(&c->producers.wanted, floor_needed(w, slots)); /* lowest floor that a sleeper needs */
	}
	return word;
}

/* Sleeps once, for `ns` at most, unless the waiter is ready. Returns false if a signal ended the sleep. */
bool sleep_once(const struct waiter *w, uint64_t slots, int64_t ns)
{
	struct timespec timeout = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
	uint32_t *word;
	uint32_t seen;
	bool woken, interrupted;

	if (ns <= 0)
		return true;
	word = announce_sleep(w, slots, &seen);
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

/* Wakes sleepers whose waker died, or was stopped, between its change and the wake-up. The waker may
 * have cleared the sleepers' marks already, so this function wakes sleepers without marks, too. */
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

/* Returns the nanoseconds since any process last looked for the dead; huge if that process was in
 * another time namespace, with a later clock. */
static uint64_t since_last_look(const shmring *r, int64_t now)
{
	return (uint64_t)now - LOOK_TIME(load_relaxed(&r->cursors->look.v));
}

/* Looks for dead participants, unless another waiter has looked within `interval` nanoseconds. The
 * clock decides, not the end of a slice: otherwise short time-outs, or wake-ups by messages behind
 * an open claim, could keep a waiter from ever looking. */
void look_for_all(const struct waiter *w, int64_t interval)
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

/* Called after a wait in vain. Returns true if waits have brought nothing for LONG_NS, and nothing can come
 * any more because the ring's file has lost its name (check_named()). */
bool find_lost(const struct waiter *w)
{
	bool lost = monotonic() - load_relaxed(&w->memory->since_ns) >= LONG_NS &&
		    check_named(w->ring, w->consumer) != SHMRING_OK;

	store_relaxed(&w->memory->lost, lost);
	return lost;
}

/* Returns how long to sleep at most, in nanoseconds. A signal that comes between the caller's check
 * for signals and the sleep does not end the sleep, and is handled only after it. To bound this delay,
 * a sleep is longer than SLICE_NS only if the wait has already lasted at least as long. */
static int64_t slice(const struct waiter *w, int64_t now)
{
	uint64_t age = since_last_look(w->ring, now);
	int64_t share = (int64_t)LOOK_SLEEPERS(load_relaxed(&w->ring->cursors->look.v)) * SHARE_NS;
	int64_t waited = now - load_relaxed(&w->memory->since_ns);

	/* A wait for releases never sleeps longer than SLICE_NS: if the waker dies before the wake-up,
	 * wake_the_forgotten() does not always wake this wait, so the wait has to look again by itself. */
	if (age >= SLICE_NS || w->releasing)
		return SLICE_NS;
	if (share <= SLICE_NS || waited <= SLICE_NS || load_relaxed(&w->memory->looks))
		return SLICE_NS - (int64_t)age;
	/* The seat's address spreads sleepers over 3/4 to 5/4 of the share, so that they wake one by one. */
	share =
	    share * 3 / 4 + (int64_t)((uintptr_t)w->seat / sizeof *w->seat * 40503 % 65536) * (share / 2) / 65536;
	return share < waited ? share : waited;
}

/* Returns the time at which a wait that begins at `start` has to look again, even if nothing wakes it. */
int64_t slice_end(const struct waiter *w, int64_t start)
{
	int64_t end;

	if (load_relaxed(&w->memory->took_ns) != IN_VAIN)
		store_relaxed(&w->memory->since_ns, start);
	end = start + slice(w, start);
	if (w->consumer && load_relaxed(&w->consumer->branch->d.orphans) && w->consumer->adopt_after_ns < end)
		end = w->consumer->adopt_after_ns;
	return end;
}
