/* Functions that wake sleepers.
 *
 * A process that changes something passes a light barrier and looks for sleepers
 * (wake.h). The functions that sleep are in waiter.c. docs/protocol.md, P9.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cells.h"
#include "wake.h"

long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void wake(struct branch *b, int consumers)
{
	fetch_add_seq_cst(&b->futex.v, 1);
	futex(&b->futex.v, FUTEX_WAKE, (uint32_t)consumers, NULL);
}

/* Wakes one consumer of each branch, because there is work. That consumer wakes the others
 * (pass_wake_up_on()). */
static void wake_one(shmring *r, uint64_t mask)
{
	uint64_t woken = fetch_and_seq_cst(&r->cursors->asleep.v, ~mask) & mask;

	for (; woken; woken &= woken - 1)
		wake(&r->cursors->branch[__builtin_ctzll(woken)], 1);
}

/* Wakes branches that follow the producers; other branches wait for releases. The acquire load of
 * `asleep` pairs with announce_sleep(): if a consumer fell asleep after a change of the graph, the
 * load of `roots` sees that change. */
void wake_roots(shmring *r)
{
	uint64_t asleep = load_acquire(&r->cursors->asleep.v) & load_relaxed(&r->cursors->graph.roots);

	if (asleep)
		wake_one(r, asleep);
}

void wake_followers(shmring *r, uint64_t followers)
{
	uint64_t asleep = load_relaxed(&r->cursors->asleep.v) & followers;

	if (asleep)
		wake_one(r, asleep);
}

bool has_consumers(const struct branch *b)
{
	return load_relaxed(&b->d.consumers[0]) | load_relaxed(&b->d.consumers[1]) |
	       load_relaxed(&b->d.consumers[2]) | load_relaxed(&b->d.consumers[3]);
}

/* Wakes all consumers of the branches in `mask`, because something has changed for each consumer. Does not skip a
 * branch whose bit in `asleep` is clear: wake_one() clears the bit, but wakes only one of the sleepers. */
void wake_branches(shmring *r, uint64_t mask)
{
	fetch_and_seq_cst(&r->cursors->asleep.v, ~mask);
	for (uint32_t id = 0; id < BRANCHES; id++)
		if (mask >> id & 1 && has_consumers(&r->cursors->branch[id]))
			wake(&r->cursors->branch[id], INT_MAX);
}

void wake_producers(shmring *r)
{
	uint32_t *word = &r->cursors->producers.futex;
	uint32_t seen;

	light_barrier(r->asymmetric); /* pairs with the heavy barrier in sleep_once() */
	seen = load_relaxed(word);
	/* Bit 0 of the word says that producers sleep; the other bits count wake-ups. Adding one to an
	 * odd word clears bit 0 and counts a wake-up.
	 *
	 * A sleeper sets bit 0 first, and then lowers `wanted`. The waker clears `wanted` first, and then
	 * bit 0. So if the waker overwrites a sleeper's `wanted`, the sleeper has set bit 0 already, and a
	 * CAS wakes the sleeper: this CAS, the next CAS of this loop, or another waker's CAS.
	 *
	 * A failed CAS releases nothing, and may have read an old word. Adding zero repairs both: it
	 * releases the cleared `wanted` to the next sleeper that sets bit 0, and it reads the newest word. */
	while (seen & 1) {
		store_relaxed(&r->cursors->producers.wanted, NONE);
		if (cas32_seq_cst(word, &seen, seen + 1)) {
			futex(word, FUTEX_WAKE, INT_MAX, NULL);
			break;
		}
		seen = fetch_add_seq_cst(word, 0);
	}
}

/* Wakes producers if they no longer have to wait for this branch. `low` is the hold to which a consumer has
 * risen; `wanted` is the lowest floor that a sleeping producer needs. The hold has to reach `wanted`, and so has
 * the branch's position (`taken`), unless only the holds of the branch's consumers hold producers back. */
void wake_producers_for(shmring *r, const struct branch *b, uint64_t low)
{
	uint64_t wanted = load_relaxed(&r->cursors->producers.wanted);

	if (low >= wanted && (load_relaxed(&b->taken.v) >> 8 >= wanted || gates_by_holds_only(b)))
		wake_producers(r);
}

/* Returns true if there are messages that the branch's consumers have not taken. */
bool has_work(const shmring *r, const struct branch *b)
{
	uint64_t t = load_acquire(&b->taken.v) >> 8;
	uint64_t upstream = load_relaxed(&b->d.upstream);

	if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST && load_relaxed(&r->cursors->floor_next.v) > t)
		return true;
	return (!upstream || upstream_released(r, upstream) > t) && is_published(r, t);
}

/* Passes a wake-up on to other consumers of the branch. A wake-up for work goes to one consumer, and
 * clears the branch's bit in `asleep`, although other consumers may sleep. So the woken consumer sets
 * the bit again, and when it has taken its own share, or gives up, it checks whether there is more.
 * The heavy barrier pairs with the light barrier in wake_readers() and wake_after_release(): either they see
 * the bit, or has_work() sees their change. */
void pass_wake_up_on(shmring_consumer *consumer)
{
	uint64_t mask = UINT64_C(1) << consumer->branch_index;

	if (!load_relaxed(&consumer->woken))
		return;
	store_relaxed(&consumer->woken, false);
	fetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);
	heavy_barrier(consumer->ring->asymmetric);
	if (has_work(consumer->ring, consumer->branch))
		wake_one(consumer->ring, mask);
}
