/* Recovery: finds dead participants, and settles their claims, takes and leases in a fixed order.
 *
 * There is one recoverer at a time, under the admin lock, which the kernel frees if
 * the recoverer dies, too. Every step may be repeated: the next recoverer begins again.
 */
#include <string.h>

#include "cells.h"
#include "takes.h"

static void settle_consumer(shmring *r, struct seat *s, uint32_t index)
{
	uint32_t id = load_relaxed(&s->id.branch);
	struct branch *b;
	uint64_t low;
	bool is_consumer;

	if (id >= BRANCHES) { /* the seat is damaged: no branch has this number */
		store_release(&s->id.state, SEAT_FREE);
		return;
	}
	b = &r->cursors->branch[id];
	settle_take(r, s, index, b);
	/* The branch's number may belong to another branch by now, which has no bit for this seat. */
	is_consumer = load_relaxed(&b->d.consumers[index / 64]) >> (index % 64) & 1;
	branch_consumer_left(r, id);
	/* Move the leases to an orphan that the branch has already: otherwise each death of a worker that dies
	 * again and again would turn one more seat into an orphan. */
	if (is_consumer && load_relaxed(&b->d.state) == BRANCH_ACTIVE)
		orphan_merge(r, s, index, id);
	low = seat_lowest(s);
	/* The seat's state changes last: if this recoverer dies before, the next one finds
	 * a dead seat and begins again. */
	if (low != NONE && is_consumer && load_relaxed(&b->d.state) == BRANCH_ACTIVE) {
		store_release(&s->lease.hold, low);
		store_relaxed(&b->d.orphans, load_relaxed(&b->d.orphans) + 1);
		store_release(&s->id.state, SEAT_ORPHAN);
	} else {
		fetch_and_seq_cst(&b->d.consumers[index / 64], ~(UINT64_C(1) << (index % 64)));
		store_release(&s->lease.hold, NONE);
		branch_consumer_left(r, id); /* the last consumer frees a dropped branch */
		store_release(&s->id.state, SEAT_FREE);
	}
	count_orphans(r, id);
	wake_branches(r, UINT64_C(1) << id | load_relaxed(&b->d.followers));
	wake_producers(r);
}

/* Settles the seat of a dead owner. Returns true if the seat is settled. */
bool recover_seat(shmring *r, uint32_t index)
{
	struct seat *s = &r->seats[index];
	uint32_t own;

	if (!settle_claim(r, s, index))
		return false;
	if (load_relaxed(&s->id.role) == ROLE_CONSUMER)
		settle_consumer(r, s, index);
	else
		store_release(&s->id.state, SEAT_FREE);
	own = load_relaxed(&r->seat);
	if (own != NOBODY)
		count(&r->seats[own].counters.recovered, 1);
	return true;
}

static bool seat_dead(const shmring *r, uint32_t index)
{
	return load_acquire(&r->seats[index].id.state) == SEAT_ACTIVE && !seat_alive(r, index);
}

/* Returns true if a branch is half dropped. If the process that dropped the branch had no seat, only this test
 * finds out that the process died: there is no dead seat. If the caller has the admin lock, the process is dead;
 * otherwise it may still be at work. */
static bool is_half_dropped(const shmring *r)
{
	for (uint32_t id = 0; id < BRANCHES; id++) {
		uint32_t state = load_relaxed(&branch_at(r, id)->d.state);

		if (state == BRANCH_DROPPING ||
		    (state == BRANCH_DROPPED && load_relaxed(&branch_at(r, id)->d.orphans)))
			return true;
	}
	return false;
}

/* Finds dead owners, one bit for each seat; each seat takes a system call. Returns true if there is something to
 * recover. */
static bool find_the_dead(const shmring *r, uint64_t dead[4])
{
	bool any = is_half_dropped(r);

	memset(dead, 0, 4 * sizeof *dead);
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (seat_dead(r, i)) {
			dead[i / 64] |= UINT64_C(1) << (i % 64);
			any = true;
		}
	return any;
}

/* Settles the seats that were found dead; other processes may have settled some of them meanwhile. */
static unsigned recover_these(shmring *r, const uint64_t dead[4])
{
	bool repaired = is_half_dropped(r);
	unsigned n = 0;

	if (repaired)
		graph_repair(r);
	for (uint32_t word = 0; word < 4; word++)
		for (uint64_t m = dead[word]; m; m &= m - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(m);

			if (!seat_dead(r, i))
				continue;
			/* Repair comes first: it completes changes that dead processes left half done under
			 * the admin lock. Once their seats are free, nothing would look for such changes. */
			if (!repaired)
				graph_repair(r);
			repaired = true;
			n += recover_seat(r, i);
		}
	return n;
}

unsigned recover_dead_seats(shmring *r)
{
	uint64_t dead[4];

	return find_the_dead(r, dead) ? recover_these(r, dead) : 0;
}

int shmring_recover(shmring *r, unsigned *count)
{
	uint64_t dead[4];
	unsigned n;

	if (count)
		*count = 0;
	RETURN_NOT_OK(check_writable(r));
	/* The search needs no lock; most of the time it finds nothing. */
	if (!find_the_dead(r, dead))
		return SHMRING_OK;
	if (!admin_try(r))
		return not_now(SHMRING_CONTENDED);
	n = recover_these(r, dead);
	if (count)
		*count = n;
	admin_leave(r);
	return SHMRING_OK;
}
