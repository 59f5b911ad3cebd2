/* Leases of orphans (of dead consumers, or handed back) go to living consumers of the same branch:
 * docs/protocol.md, P7.
 *
 * The leases come before fresh messages, but never block them. If the admin lock cannot be
 * taken, the consumer takes fresh messages, and tries again after a pause, because the process
 * that has the lock may be stopped for good.
 */
#include <time.h>

#include "cells.h"
#include "takes.h"

/* Shortest and longest pause between two tries of a consumer to get the admin lock for an adoption; each pause is
 * twice the one before. Both are choices: a recovery has the lock for microseconds, a stopped process for as long
 * as it is stopped. */
#define LEAST_PAUSE_NS (100 * 1000LL)
#define LONGEST_PAUSE_NS (50 * 1000 * 1000LL)
/* Number of times that a consumer of an exclusive branch tries to get the admin lock, NAP_NS apart, before it
 * takes fresh messages without the lock. An exclusive branch has one consumer at a time, so its users expect the
 * messages in order: fresh messages that come before the older messages of an orphan break the order. The
 * number is a choice: 20 tries take a millisecond, and a recovery has the lock for microseconds. */
#define EXCLUSIVE_TRIES 20
#define NAP_NS 50000

/* Strikes range `k` of an orphan's seat, because the range cannot be delivered: its first message is damaged, or
 * no message begins at its first slot. Returns true if `status` is an error: the take then returns that error. */
static bool undeliverable(shmring_consumer *consumer, struct seat *dead, struct range *known, uint32_t k,
			  int status)
{
	known[k].lo = NONE;
	store_relaxed(&dead->range[k].lo, NONE);
	store_release(&dead->lease.hold, ranges_lowest(known, LEASES));
	consumer_raise_hold(consumer);
	return status != SHMRING_OK;
}

/* Adds one delivery to a count of deliveries. The count stops at 255, because a range has 8 bits for it. */
static uint32_t once_more(uint32_t before)
{
	return before < UINT8_MAX ? before + 1 : before;
}

/* CHANGE: edit this for a new counter that each participant has */
static void give_again(shmring_consumer *consumer, uint64_t lo, uint64_t end, uint32_t messages, uint32_t before,
		       struct shmring_lease *lease)
{
	*lease = (struct shmring_lease){lo, end, messages, (uint8_t)before};
	count(&consumer->seat->counters.messages, messages);
	count(&consumer->seat->counters.redelivered, messages);
}

/* Moves a lease on the oldest messages of the orphan in seat `from` to this consumer's seat. The lease is recorded
 * in this seat before it is struck from the orphan's seat. In between, `adopt_from` of this seat names the
 * orphan's seat, so that recovery keeps exactly one of the two records if this consumer dies. Returns true if the
 * take ends with *status; false if nothing was delivered and the take goes on. */
static bool adopt_from(shmring_consumer *consumer, uint32_t from, uint32_t max_messages, uint64_t max_slots,
		       struct shmring_lease *lease, int *status)
{
	shmring *r = consumer->ring;
	struct seat *s = consumer->seat;
	struct seat *dead = &r->seats[from];
	struct range known[LEASES]; /* ranges that the orphan's seat records */
	uint32_t all = LEASES;
	uint32_t k = 0;
	uint32_t messages, before;
	uint64_t lo, hi, end;
	bool marker = false;

	seat_read_ranges(dead, known);
	lo = ranges_lowest(known, LEASES);
	while (k < LEASES - 1 && known[k].lo != lo)
		k++;
	hi = RANGE_END(known[k].hi);
	before = once_more(RANGE_BEFORE(known[k].hi));
	if (load_relaxed(&consumer->branch->d.options) & BRANCH_DROP_OLDEST) {
		uint64_t from_here = consumer_stake(consumer, lo);

		if (from_here > lo && hi > lo) {
			end = from_here < hi ? from_here : hi;
			/* The removal cannot fail: removing the beginning of a range splits nothing, so it needs
			 * no free entry. */
			(void)ranges_remove(dead, known, &all, lo, end);
			store_release(&dead->lease.hold, ranges_lowest(known, LEASES));
			consumer_raise_hold(consumer);
			*status = consumer_overrun(consumer, lo, end);
			return true;
		}
	}
	end = lo;
	messages = 0;
	*status = SHMRING_OK;
	if (lo < MAX_SEQUENCE)
		*status = scan_messages(r, lo, hi, max_messages, max_slots, &end, &messages, &marker);
	messages += marker && consumer->takes_ends;
	if (*status || end == lo)
		return undeliverable(consumer, dead, known, k, *status);
	store_relaxed(&s->lease.adopt_lo, lo);
	store_relaxed(&s->lease.adopt_hi, end);
	crash_order();
	store_relaxed(&s->lease.adopt_from, from + 1);
	crash_order();
	*status = consumer_record(consumer, lo, end, before);
	if (*status) {
		store_relaxed(&s->lease.adopt_from, 0);
		if (*status == SHMRING_E_DAMAGED)
			return undeliverable(consumer, dead, known, k, *status);
		consumer_raise_hold(consumer);
		return true;
	}
	if (lo < load_relaxed(&s->lease.hold))
		store_release(&s->lease.hold, lo);
	fetch_add_seq_cst(&consumer->branch->d.moves, 1); /* makes branch_released() read all holds again */
	/* The removal cannot fail: removing the beginning of a range splits nothing, so it needs no free entry. */
	(void)ranges_remove(dead, known, &all, lo, end);
	store_release(&dead->lease.hold, ranges_lowest(known, LEASES));
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
	if (messages == 0) {
		(void)ranges_remove(s, consumer->range, &consumer->ranges_used, lo, end);
		consumer_raise_hold(consumer);
		return false;
	}
	give_again(consumer, lo, end, messages, before, lease);
	return true;
}

bool may_adopt(const shmring_consumer *consumer)
{
	return consumer->adopt_after_ns == 0 || monotonic() >= consumer->adopt_after_ns;
}

static bool adopt_later(shmring_consumer *consumer)
{
	int64_t pause = consumer->adopt_pause_ns * 2;

	consumer->adopt_pause_ns = pause < LEAST_PAUSE_NS     ? LEAST_PAUSE_NS
				   : pause > LONGEST_PAUSE_NS ? LONGEST_PAUSE_NS
							      : pause;
	consumer->adopt_after_ns = monotonic() + consumer->adopt_pause_ns;
	return false;
}

static bool try_admin_lock(shmring_consumer *consumer)
{
	int tries = load_relaxed(&consumer->branch->d.options) & BRANCH_EXCLUSIVE ? EXCLUSIVE_TRIES : 1;

	while (!admin_try(consumer->ring)) {
		if (--tries == 0)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return true;
}

/* Notes in `graph.adopter` that this consumer moves leases from now on. A consumer that is still noted there has
 * died while it moved leases; it is the only one, because leases move only under the admin lock. This function
 * first settles the dead consumer: recovery sees by the orphan's seat which of the two seats has the lease, and
 * the next move could change the orphan's seat. Returns false if the dead consumer cannot be settled now. */
bool leases_move(shmring_consumer *consumer)
{
	shmring *r = consumer->ring;
	uint32_t last = load_relaxed(&r->cursors->graph.adopter);

	if (last && last <= r->seat_count) {
		recover_dead_seats(r);
		if (load_relaxed(&r->seats[last - 1].id.state) == SEAT_ACTIVE &&
		    load_relaxed(&r->seats[last - 1].lease.adopt_from))
			return false;
	}
	store_relaxed(&r->cursors->graph.adopter, consumer->seat_index + 1);
	crash_order();
	return true;
}

void leases_moved(shmring_consumer *consumer)
{
	crash_order();
	store_relaxed(&consumer->ring->cursors->graph.adopter, 0);
}

/* Frees the seat of an orphan that holds nothing any more. Returns true if it has freed the seat. */
static bool free_if_empty(shmring_consumer *consumer, uint32_t index)
{
	struct seat *dead = &consumer->ring->seats[index];

	if (seat_lowest(dead) != NONE)
		return false;
	fetch_and_seq_cst(&consumer->branch->d.consumers[index / 64], ~(UINT64_C(1) << (index % 64)));
	store_release(&dead->lease.hold, NONE);
	store_release(&dead->id.state, SEAT_FREE);
	return true;
}

/* Takes over a lease of an orphan of this branch and delivers its messages again. Returns true if the take ends
 * with *status; false if nothing was delivered, so that the take goes on with fresh messages. */
bool consumer_adopt(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
		    struct shmring_lease *lease, int *status)
{
	shmring *r = consumer->ring;
	bool answered = false, undelivered = false, freed = false;

	if (!may_adopt(consumer))
		return false;
	if (!try_admin_lock(consumer))
		return adopt_later(consumer);
	if (!leases_move(consumer)) {
		admin_leave(r);
		return adopt_later(consumer);
	}
	consumer->adopt_after_ns = consumer->adopt_pause_ns = 0;
	/* The search begins with the orphan of the last adoption, which often has more leases: the search then
	 * ends at once, however many seats the ring has. */
	for (uint32_t n = 0, first = consumer->adopt_seat; n < r->seat_count && !answered; n++) {
		uint32_t i = (first + n) % r->seat_count;
		struct seat *dead = &r->seats[i];

		if (load_relaxed(&dead->id.state) != SEAT_ORPHAN ||
		    load_relaxed(&dead->id.branch) != consumer->branch_index)
			continue;
		consumer->adopt_seat = i;
		for (int k = 0; k < LEASES && !answered && seat_lowest(dead) != NONE; k++) {
			answered = adopt_from(consumer, i, max_messages, max_slots, lease, status);
			undelivered |= !answered || *status;
		}
		freed |= free_if_empty(consumer, i);
	}
	if (freed || !answered)
		count_orphans(r, consumer->branch_index);
	leases_moved(consumer);
	if (undelivered)
		wake_producers(r);
	admin_leave(r);
	return answered;
}

/* Delivers messages from the beginning of [lo, hi) again, as many as the limits allow. Sets *end to the end of the
 * sequences that were delivered or given up; the caller keeps [*end, hi) for the next take. Returns true if the
 * take ends with *status; false if nothing was delivered and the take goes on. */
static bool give_returned(shmring_consumer *consumer, uint64_t lo, uint64_t hi, uint32_t max_messages,
			  uint64_t max_slots, uint64_t *end, struct shmring_lease *lease, int *status)
{
	uint64_t same = consumer_end_of_count(consumer, lo, hi);
	uint32_t messages = 0, before;
	bool marker = false;

	if (lo < consumer->lost_below) {
		*end = hi < consumer->lost_below ? hi : consumer->lost_below;
		(void)ranges_remove(consumer->seat, consumer->range, &consumer->ranges_used, lo, *end);
		consumer_raise_hold(consumer);
		*status = consumer_overrun(consumer, lo, *end);
		return true;
	}
	*end = lo;
	*status = scan_messages(consumer->ring, lo, same, max_messages, max_slots, end, &messages, &marker);
	messages += marker && consumer->takes_ends;
	/* If the message at `lo` is damaged or missing, the messages behind it cannot be found: nothing of
	 * [lo, same) is delivered, and the code below strikes all of it. */
	if (*status || *end == lo)
		*end = same;
	/* The result is ignored: if the removal would split a recorded range, and no entry is free for the second
	 * part, [lo, *end) stays recorded, and the consumer holds it until it leaves. */
	if (*status || !messages) {
		(void)ranges_remove(consumer->seat, consumer->range, &consumer->ranges_used, lo, *end);
		consumer_raise_hold(consumer);
		return *status != SHMRING_OK;
	}
	before = once_more(consumer_delivered_before(consumer, lo, *end));
	consumer_count_delivery(consumer, lo, *end, before);
	give_again(consumer, lo, *end, messages, before, lease);
	return true;
}

/* Delivers messages again that this consumer handed back while no seat was free, or that it inherited with the
 * seat of an orphan. The consumer's seat records and holds these messages already, so no lease has to move.
 * Returns true if the take ends with *status; false if nothing was delivered and the take goes on. */
bool consumer_take_again(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			 struct shmring_lease *lease, int *status)
{
	bool answered = false;
	uint64_t lo, hi, end;

	while (!answered && deferred_take_lowest(&consumer->returned, &lo, &hi)) {
		answered = give_returned(consumer, lo, hi, max_messages, max_slots, &end, lease, status);
		if (end < hi)
			deferred_put(&consumer->returned, end, hi);
	}
	store_relaxed(&consumer->gives_again, consumer->returned.used != 0);
	return answered;
}
