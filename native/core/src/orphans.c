/* Orphans: seats without an owner, which keep messages for redelivery.
 *
 * A lease comes into an orphan in two ways: a living consumer hands it back (nack.c), or recovery
 * merges the ranges of a dead consumer into an orphan that its branch has already (recovery.c).
 * Both record the lease in the orphan before they strike it in the consumer's seat. In between, adopt_from
 * of the consumer's seat names the orphan. docs/protocol.md, P7. */
#include "cells.h"
#include "takes.h"

/* Returns true if an orphan has room for [lo, hi), and stores the room in *destination: a range that grows at its
 * end or its beginning, or a free entry. */
static bool has_room(const struct seat *orphan, uint64_t lo, uint64_t hi, struct destination *destination)
{
	struct range known[LEASES];

	seat_read_ranges(orphan, known);
	destination->entry = LEASES;
	destination->how = NEW_RANGE;
	for (uint32_t k = 0; k < LEASES; k++) {
		if (known[k].lo == NONE) {
			destination->entry = destination->entry < LEASES ? destination->entry : k;
		} else if (RANGE_BEFORE(known[k].hi) == destination->before &&
			   (RANGE_END(known[k].hi) == lo || known[k].lo == hi)) {
			destination->entry = k;
			destination->how = known[k].lo == hi ? GROW_DOWN : GROW_UP;
			break;
		}
	}
	return destination->entry < LEASES;
}

/* Finds the seat that gets [lo, hi): an orphan of the branch that has room, or else a free seat, which becomes an
 * orphan. Orphans come first because seats are scarce. The seat is NOBODY if there is no free seat either. */
struct destination orphan_find(const shmring *r, uint32_t branch, uint64_t lo, uint64_t hi, uint32_t before)
{
	struct destination found = {.seat = NOBODY, .before = before, .how = NEW_ORPHAN};
	struct destination orphan = found;

	for (uint32_t i = r->seat_count; i-- > 0;) {
		uint32_t state = load_relaxed(&r->seats[i].id.state);

		orphan.seat = i;
		if (state == SEAT_ORPHAN && load_relaxed(&r->seats[i].id.branch) == branch &&
		    has_room(&r->seats[i], lo, hi, &orphan))
			return orphan;
		if (state == SEAT_FREE && !seat_is_own(r, i))
			found.seat = i;
	}
	return found;
}

static void record(struct seat *orphan, const struct destination *destination, uint64_t lo, uint64_t hi)
{
	struct range *range = &orphan->range[destination->entry];

	/* Lower the hold first: it must never be above the beginning of a recorded range. */
	if (lo < load_relaxed(&orphan->lease.hold))
		store_release(&orphan->lease.hold, lo);
	crash_order();
	if (destination->how != GROW_DOWN)
		store_relaxed(&range->hi, RANGE_WORD(hi, destination->before));
	crash_order();
	if (destination->how != GROW_UP)
		store_relaxed(&range->lo, lo);
}

/* Records [lo, hi), which seat `s` holds, in an orphan. The caller strikes it in `s` next, then clears adopt_from.
 */
void orphan_record(shmring *r, struct seat *s, uint32_t branch, const struct destination *destination, uint64_t lo,
		   uint64_t hi)
{
	struct branch_descriptor *d = &branch_at(r, branch)->d;
	uint32_t to = destination->seat;
	struct seat *orphan = &r->seats[to];
	bool is_new = destination->how == NEW_ORPHAN;

	store_relaxed(&s->lease.adopt_lo, lo);
	store_relaxed(&s->lease.adopt_hi, hi);
	crash_order();
	store_relaxed(&s->lease.adopt_from, (to + 1) | ADOPT_AWAY);
	crash_order();
	if (is_new)
		seat_prepare(orphan, branch);
	record(orphan, destination, lo, hi);
	crash_order();
	if (is_new) {
		store_release(&orphan->id.state, SEAT_ORPHAN);
		/* Set the seat's bit in `consumers` after its state: a free seat must not count as a consumer. */
		fetch_or_seq_cst(&d->consumers[to / 64], UINT64_C(1) << (to % 64));
	}
	fetch_add_seq_cst(&d->moves, 1); /* makes branch_released() read all holds again */
}

/* Returns true if the owner of seat `mover` died while it moved a lease, and is not settled yet. */
static bool is_moving(const shmring *r, uint32_t mover)
{
	return mover < r->seat_count && load_relaxed(&r->seats[mover].id.state) == SEAT_ACTIVE &&
	       load_relaxed(&r->seats[mover].lease.adopt_from);
}

/* Moves the ranges of a dead consumer into existing orphans of its branch. A range stays if no orphan has room
 * for it. The caller has settled the consumer's take before. The dead seat records each move as if the consumer
 * had handed the range back itself: if this recoverer dies, the next recoverer settles the move. */
void orphan_merge(shmring *r, struct seat *s, uint32_t index, uint32_t branch)
{
	uint32_t *mover = &r->cursors->graph.adopter;
	uint32_t before = load_relaxed(mover);
	struct range known[LEASES];

	/* If another process died while it moved a lease, change no orphan now: recovery of that process will look
	 * up in the orphans whether the lease has arrived. */
	if (before && before != index + 1 && is_moving(r, before - 1))
		return;
	store_relaxed(mover, index + 1);
	crash_order();
	seat_read_ranges(s, known);
	for (uint32_t k = 0; k < LEASES; k++) {
		uint64_t lo = known[k].lo, hi = RANGE_END(known[k].hi);
		struct destination to;

		if (lo == NONE)
			continue;
		to = orphan_find(r, branch, lo, hi, RANGE_BEFORE(known[k].hi));
		if (to.seat == NOBODY || to.how == NEW_ORPHAN)
			continue;
		orphan_record(r, s, branch, &to, lo, hi);
		crash_order();
		store_relaxed(&s->range[k].lo, NONE);
		crash_order();
		store_relaxed(&s->lease.adopt_from, 0);
		crash_order();
		seat_join_ranges(&r->seats[to.seat], true);
	}
	store_relaxed(mover, before);
}
