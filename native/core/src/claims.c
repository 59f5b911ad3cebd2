/* Claims that are not published: aborted runs, and the holes of the dead.
 * docs/protocol.md, P3.
 */
#include "cells.h"
#include "wake.h"

void publish_aborted(shmring *r, uint64_t lo, uint64_t n, uint8_t seat)
{
	struct control *entry = control_at(r, lo);

	entry_fill(entry, 0, 0, (uint32_t)n, seat, KIND_ABORTED, 0, 0, 0);
	publish(entry, lo);
}

/* Did the claim word pass through `at`, which is h + n of a hole at h? It reads the
 * claim first, then the intents, publication last: a producer that claimed from `at`
 * has its intent there until it has published. */
static bool passed_through(const shmring *r, uint64_t h, uint64_t at)
{
	uint8_t seat;

	if (load_acquire(&r->cursors->claim.v) == at)
		return true;
	for (uint32_t i = 0; i < r->seat_count; i++)
		if (load_relaxed(&r->seats[i].id.state) != SEAT_FREE && load_acquire(&r->seats[i].intent.lo) == at)
			return true;
	if (!is_published(r, at))
		return false;
	/* The hole's owner may have died while it filled a batch, whose later rows carry
	 * their numbers already. A seat's claims only go up: entries behind h, written by
	 * a seat with its intent at h, lie inside the hole. */
	seat = description_seat(load_relaxed(&control_at(r, at)->description));
	return seat >= r->seat_count || load_relaxed(&r->seats[seat].intent.lo) != h;
}

/* The length of the hole at h, whose owner is dead; 0 if it is unknown now because
 * a living producer may be the owner. docs/protocol.md, P3: among the dead whose
 * intent begins at h, the smallest n with evidence is right. */
static uint64_t hole_length(const shmring *r, uint64_t h)
{
	uint64_t best = 0;

	if (r->options & OPT_SINGLE_PRODUCER) /* no other producer can have moved it */
		return load_relaxed(&r->cursors->claim.v) - h;
	for (uint32_t i = 0; i < r->seat_count; i++) {
		const struct seat *s = &r->seats[i];
		uint64_t n;

		if (load_relaxed(&s->id.state) == SEAT_FREE || load_acquire(&s->intent.lo) != h)
			continue;
		if (seat_alive(r, i))
			return 0;
		n = load_relaxed(&s->intent.n);
		if (n && n <= r->capacity && (best == 0 || n < best) && passed_through(r, h, h + n))
			best = n;
	}
	return best;
}

/* True if the seat no longer needs its intent. */
bool settle_claim(shmring *r, struct seat *s, uint32_t index)
{
	uint64_t h = load_relaxed(&s->intent.lo); /* its owner is dead: all its stores are visible */

	/* Without a hole it never had h. Another producer may take h from now on. */
	if (h != NONE && is_hole(r, h)) {
		uint64_t n = hole_length(r, h);

		if (n == 0 || n > r->capacity)
			return false;
		/* Again: a living owner may have published and cleared its intent between the
		 * first check and hole_length(). It publishes first, so this check sees it. */
		if (is_hole(r, h)) {
			/* A batch's rows may carry their numbers already; table() must not take them for
			 * messages. */
			for (uint64_t i = 1; i < n; i++)
				store_relaxed(&control_at(r, h + i)->published, 0);
			publish_aborted(r, h, n, (uint8_t)index);
			wake_readers(r, r->asymmetric);
		}
	}
	store_release(&s->intent.lo, NONE);
	return true;
}
