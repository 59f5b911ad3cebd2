/* What a dead member held goes to a living one of its branch: docs/protocol.md, P7. */
#include "internal.h"

/* Moves the oldest messages that the dead member in seat `from` held into this
 * member's seat. The lease is recorded here before it is struck there, and
 * adopt_from says so in between: should this member die too, recovery keeps
 * exactly one of the two. Returns true if *status is the answer of the take. */
static bool adopt_from(shmring_member *m, uint32_t from, uint32_t max_messages, uint64_t max_slots,
		       struct shmring_lease *lease, int *status)
{
	shmring *r = m->ring;
	struct seat *s = m->seat;
	struct seat *dead = &r->seats[from];
	uint64_t lo = ranges_lowest(dead, LEASES);
	uint32_t all = LEASES;
	uint32_t k = 0;
	uint32_t messages;
	uint64_t hi, end;
	bool marker = false;

	while (k < LEASES - 1 && load_relaxed(&dead->range[k].lo) != lo)
		k++;
	hi = load_relaxed(&dead->range[k].hi);
	if (load_relaxed(&m->branch->d.options) & BRANCH_LAPSE) {
		uint64_t from_here = member_stake(m, lo);

		if (from_here > lo && hi > lo) {
			end = from_here < hi ? from_here : hi;
			(void)ranges_remove(dead, &all, lo, end); /* a prefix: needs no entry */
			store_release(&dead->lease.hold, ranges_lowest(dead, LEASES));
			member_raise_hold(m);
			*status = member_lapsed(m, lo, end);
			return true;
		}
	}
	end = lo;
	messages = 0;
	*status = SHMRING_OK;
	if (lo < MAX_SEQUENCE)
		*status = scan_messages(r, lo, hi, max_messages, max_slots, &end, &messages, &marker);
	messages += marker && m->takes_ends;
	if (*status || end == lo) {
		/* Damaged: it cannot be delivered; saying so once is enough. */
		store_relaxed(&dead->range[k].lo, NONE);
		store_release(&dead->lease.hold, ranges_lowest(dead, LEASES));
		member_raise_hold(m);
		return *status != SHMRING_OK;
	}
	store_relaxed(&s->lease.adopt_lo, lo);
	store_relaxed(&s->lease.adopt_hi, end);
	crash_order();
	store_relaxed(&s->lease.adopt_from, from + 1);
	crash_order();
	*status = member_record(m, lo, end);
	if (*status) {
		store_relaxed(&s->lease.adopt_from, 0);
		member_raise_hold(m);
		return true;
	}
	if (lo < load_relaxed(&s->lease.hold))
		store_release(&s->lease.hold, lo);
	fetch_add_seq_cst(&m->branch->d.moves, 1); /* see branch_released() */
	(void)ranges_remove(dead, &all, lo, end); /* a prefix: needs no entry */
	store_release(&dead->lease.hold, ranges_lowest(dead, LEASES));
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
	if (messages == 0) {
		(void)ranges_remove(s, &m->ranges_used, lo, end);
		member_raise_hold(m);
		return false;
	}
	*lease = (struct shmring_lease){lo, end, messages, true};
	count(&s->counters.messages, messages);
	return true;
}

/* Takes over what a dead member of this branch held. Returns true if *status
 * is the answer of the take. */
bool member_adopt(shmring_member *m, uint32_t max_messages, uint64_t max_slots, struct shmring_lease *lease,
		  int *status)
{
	shmring *r = m->ring;
	bool answered = false;

	if (!admin_try(r)) {
		*status = not_now(load_relaxed(&m->branch->d.options) & BRANCH_EXCLUSIVE ? SHMRING_UNAVAILABLE
											 : SHMRING_CONTENDED);
		return true;
	}
	/* A member that died adopting must be settled before its source moves on:
	 * recovery asks there whose the lease is. */
	recover_dead_seats(r);
	for (uint32_t i = 0; i < r->seat_count && !answered; i++) {
		struct seat *dead = &r->seats[i];

		if (load_acquire(&dead->id.state) != SEAT_ORPHAN ||
		    load_relaxed(&dead->id.branch) != m->branch_index)
			continue;
		for (int k = 0; k < LEASES && !answered && ranges_lowest(dead, LEASES) != NONE; k++)
			answered = adopt_from(m, i, max_messages, max_slots, lease, status);
		if (ranges_lowest(dead, LEASES) == NONE) {
			fetch_and_seq_cst(&m->branch->d.members[i / 64], ~(UINT64_C(1) << (i % 64)));
			store_release(&dead->lease.hold, NONE);
			store_release(&dead->id.state, SEAT_FREE);
		}
	}
	count_orphans(r, m->branch_index);
	wake_producers(r); /* for leases that could not be delivered */
	admin_leave(r);
	return answered;
}
