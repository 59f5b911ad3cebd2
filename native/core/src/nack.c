/* A living consumer hands messages back: docs/protocol.md, P7.
 *
 * This is an adoption in the other direction. The lease is recorded in an orphan of
 * the branch before it is struck here, and adopt_from marks the time between: if this
 * process dies, recovery keeps exactly one of the two. */
#include <limits.h>
#include <string.h>

#include "cells.h"
#include "takes.h"

/* The destination of a lease; it is decided once, even if the seat is overwritten meanwhile. */
struct place {
	uint32_t seat; /* NOBODY: there is none */
	uint32_t entry;
	uint32_t before; /* how often the messages were delivered before */
	enum { GROW_DOWN, GROW_UP, NEW_RANGE, NEW_ORPHAN } how;
};

/* Finds a range to grow at its end or beginning, or a free entry. */
static bool has_room(const struct seat *orphan, uint64_t lo, uint64_t hi, struct place *place)
{
	struct range known[LEASES];

	seat_read_ranges(orphan, known);
	place->entry = LEASES;
	place->how = NEW_RANGE;
	for (uint32_t k = 0; k < LEASES; k++) {
		if (known[k].lo == NONE) {
			place->entry = place->entry < LEASES ? place->entry : k;
		} else if (RANGE_BEFORE(known[k].hi) == place->before &&
			   (RANGE_END(known[k].hi) == lo || known[k].lo == hi)) {
			place->entry = k;
			place->how = known[k].lo == hi ? GROW_DOWN : GROW_UP;
			break;
		}
	}
	return place->entry < LEASES;
}

static void orphan_record(struct seat *orphan, const struct place *place, uint64_t lo, uint64_t hi)
{
	struct range *range = &orphan->range[place->entry];

	/* It is never above the lowest range. */
	if (lo < load_relaxed(&orphan->lease.hold))
		store_release(&orphan->lease.hold, lo);
	crash_order();
	if (place->how != GROW_DOWN)
		store_relaxed(&range->hi, RANGE_WORD(hi, place->before));
	crash_order();
	if (place->how != GROW_UP)
		store_relaxed(&range->lo, lo);
}

/* Finds an orphan with room, so that many nacks do not take all seats; or a free
 * seat; or NOBODY. */
static struct place find_orphan(const shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	const shmring *r = consumer->ring;
	struct place found = {
	    .seat = NOBODY, .before = consumer_delivered_before(consumer, lo, hi), .how = NEW_ORPHAN};
	struct place orphan = found;

	for (uint32_t i = r->seat_count; i-- > 0;) {
		uint32_t state = load_relaxed(&r->seats[i].id.state);

		orphan.seat = i;
		if (state == SEAT_ORPHAN && load_relaxed(&r->seats[i].id.branch) == consumer->branch_index &&
		    has_room(&r->seats[i], lo, hi, &orphan))
			return orphan;
		if (state == SEAT_FREE && !seat_is_own(r, i))
			found.seat = i;
	}
	return found;
}

/* An entry that reaches beyond both ends of [lo, hi) needs another entry for its tail: is one free? */
static bool can_strike(const shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	bool inside = false;

	for (uint32_t k = 0; k < consumer->ranges_used; k++)
		inside |= consumer->range[k].lo < lo && RANGE_END(consumer->range[k].hi) > hi;
	return !inside || ranges_free_entry(consumer->range, &(uint32_t){consumer->ranges_used}) >= 0;
}

static void hand_over(shmring_consumer *consumer, const struct place *place, uint64_t lo, uint64_t hi)
{
	shmring *r = consumer->ring;
	struct seat *s = consumer->seat;
	uint32_t to = place->seat;
	struct seat *orphan = &r->seats[to];
	bool is_new = place->how == NEW_ORPHAN;

	store_relaxed(&s->lease.adopt_lo, lo);
	store_relaxed(&s->lease.adopt_hi, hi);
	crash_order();
	store_relaxed(&s->lease.adopt_from, (to + 1) | ADOPT_AWAY);
	crash_order();
	if (is_new)
		seat_prepare(orphan, consumer->branch_index);
	orphan_record(orphan, place, lo, hi);
	crash_order();
	if (is_new) {
		store_release(&orphan->id.state, SEAT_ORPHAN);
		/* This comes after the state: a free seat is not a consumer. */
		fetch_or_seq_cst(&consumer->branch->d.consumers[to / 64], UINT64_C(1) << (to % 64));
	}
	fetch_add_seq_cst(&consumer->branch->d.moves, 1); /* see branch_released() */
	(void)ranges_remove(s, consumer->range, &consumer->ranges_used, lo, hi);
	consumer_raise_hold(consumer);
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
	count_orphans(r, consumer->branch_index);
	wake_branches(r, UINT64_C(1) << consumer->branch_index);
}

/* All seats are taken: the range stays recorded and held here, and the next take of this
 * consumer delivers it again. */
static int keep_to_give_again(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	if (!deferred_reserve(&consumer->returned))
		return fail(SHMRING_E_NO_MEMORY, "out of memory; hand it back again later");
	deferred_join(&consumer->returned, &first, &end);
	deferred_put(&consumer->returned, first, end);
	if (consumer->ranges_used < 2) { /* releases go the long way, which asks what is handed back */
		consumer->range[consumer->ranges_used].lo = NONE;
		consumer->ranges_used = 2;
	}
	store_relaxed(&consumer->gives_again, true);
	wake(consumer->branch, INT_MAX); /* threads that wait in this consumer */
	return SHMRING_OK;
}

static int hand_back(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	shmring *r = consumer->ring;
	int status = SHMRING_OK;
	struct place to;

	/* A move that a death interrupted is settled before either seat changes. */
	if (!leases_move(consumer))
		return fail(
		    SHMRING_CONTENDED,
		    "ring \"%s\": a consumer that died moving a lease cannot be cleared away now; try again",
		    r->name);
	to = find_orphan(consumer, first, end);
	if (to.seat == NOBODY && recover_dead_seats(r))
		to = find_orphan(consumer, first, end);
	if (load_relaxed(&consumer->branch->d.state) != BRANCH_ACTIVE)
		status = shmring_release(consumer, first, end); /* dropped: it is not delivered again */
	else if (to.seat == NOBODY)
		status = keep_to_give_again(consumer, first, end);
	else
		hand_over(consumer, &to, first, end);
	leases_moved(consumer);
	return status;
}

int shmring_nack(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	shmring *r = consumer->ring;
	int status;

	RETURN_NOT_OK(check_usable(r));
	RETURN_NOT_OK(consumer_check_held(consumer, first, end));
	if (deferred_overlaps(&consumer->deferred, first, end))
		return fail(SHMRING_E_INVALID, "ring \"%s\": some of [%llu, %llu) is released already", r->name,
			    (unsigned long long)first, (unsigned long long)end);
	if (consumer->gives_again && deferred_overlaps(&consumer->returned, first, end))
		return fail_returned(consumer, first, end);
	if (!can_strike(consumer, first, end))
		return fail(
		    SHMRING_E_LEASES,
		    "ring \"%s\": this consumer holds %d separate leases, and has no room for another piece; "
		    "release or hand back one of them first",
		    r->name, LEASES);
	if (!admin_try(r))
		return not_now(SHMRING_CONTENDED);
	status = hand_back(consumer, first, end);
	admin_leave(r);
	return status;
}

bool shmring_nack_again(const shmring_consumer *consumer, int64_t since_ns)
{
	return admin_is_worth_waiting(consumer->ring, since_ns, true);
}

/* --- dead letters --------------------------------------------------------------------- */

/* Messages that were delivered as often as they may be go into another ring, and are released here:
 * docs/concepts/death.md. */
#define EXPLANATION_BYTES 512

static int is_full(const shmring_consumer *consumer, const struct shmring_lease *lease)
{
	const shmring *to = consumer->dead_letters->ring;
	char holder[EXPLANATION_BYTES];

	shmring_explain_full(to, holder, sizeof holder);
	return fail(
	    SHMRING_E_NO_SPACE,
	    "ring \"%s\": message %llu was delivered %u times, which is the most, and ring \"%s\" for dead "
	    "letters is full: %s; the message stays, and the next take tries again",
	    consumer->ring->name, (unsigned long long)lease->first, consumer->max_deliveries, to->name, holder);
}

/* Whether this one message has gone into the other ring. Else it is to be delivered, or *status says why it
 * stays. A process that is killed after the push pushes the message twice, and loses none. */
static bool set_aside(shmring_consumer *consumer, const struct shmring_lease *lease, int *status)
{
	struct shmring_message message;
	uint64_t at = lease->first;

	/* Who is given a damaged message gets an error for it, once. An end ends more than its reader. */
	if (lease->redelivered < consumer->max_deliveries ||
	    shmring_read(consumer->ring, &at, lease->end, &message) || message.kind == KIND_END)
		return false;
	*status = shmring_push(consumer->dead_letters, message.data, message.length, message.kind, NULL);
	if (*status == SHMRING_UNAVAILABLE)
		*status = is_full(consumer, lease);
	if (*status) {
		if (keep_to_give_again(consumer, lease->first, lease->end))
			*status = SHMRING_E_NO_MEMORY;
		return false;
	}
	*status = shmring_release(consumer, lease->first, lease->end);
	return *status == SHMRING_OK;
}

static bool same_schema(const shmring *r, const shmring *to)
{
	struct shmring_info from, other;

	shmring_get_info(r, &from);
	shmring_get_info(to, &other);
	return from.schema_bytes == 0 || (from.schema_bytes == other.schema_bytes &&
					  memcmp(from.schema, other.schema, from.schema_bytes) == 0);
}

int shmring_consumer_dead_letters(shmring_consumer *consumer, uint32_t max_deliveries, shmring_producer *producer)
{
	shmring *r = consumer->ring, *to = producer->ring;
	int status = SHMRING_OK;

	if (max_deliveries < 1 || max_deliveries > UINT8_MAX)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a message is delivered 1 to %d times, not %u",
			    r->name, UINT8_MAX, max_deliveries);
	if (memcmp(r->header.uuid, to->header.uuid, sizeof to->header.uuid) == 0)
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" cannot be the ring for its own dead letters: they would be delivered again",
		    r->name);
	if (!same_schema(r, to))
		return fail(
		    SHMRING_E_INVALID,
		    "ring \"%s\" needs the Arrow schema of ring \"%s\" to have its dead letters; create it "
		    "with the same schema",
		    to->name, r->name);
	if (!load_relaxed(&to->cursors->graph.active)) /* nobody would keep them */
		status = shmring_subscribe(to, "default", NULL, NULL);
	if (!status) {
		consumer->max_deliveries = max_deliveries;
		consumer->dead_letters = producer;
		consumer->set_aside = set_aside;
	}
	return status;
}
