/* The state of takes: the ranges that a seat records, the hold of a consumer, and a branch's `taken`.
 *
 * `taken` names the consumer that moved it last. The next consumer first marks that take as done
 * (confirm), and then moves `taken`. So it is always known whether the last take of a dead consumer
 * succeeded: it did if the take is marked as done, or if `taken` still names the dead consumer.
 * docs/protocol.md, P5.
 */
#include "cells.h"
#include "takes.h"

/* --- the ranges of one seat ------------------------------------------------- */

/* A seat records its ranges for recovery after its owner's death. The owner keeps a copy, `known`, and
 * never reads the seat again; a process that recovers the seat copies it once. So stray writes into the
 * seat do not change `known`.
 *
 * The first `used` entries may be in use; all later entries are free. So in the common case (one lease
 * at a time) only one entry is read. */
uint64_t ranges_lowest(const struct range *known, uint32_t used)
{
	uint64_t low = NONE;

	for (uint32_t k = 0; k < used; k++)
		if (known[k].lo < low)
			low = known[k].lo;
	return low;
}

/* Returns the number of a free entry, and raises *used if necessary. Returns -1 if all entries are in use. */
int ranges_free_entry(const struct range *known, uint32_t *used)
{
	for (uint32_t k = 0; k < *used; k++)
		if (known[k].lo == NONE)
			return (int)k;
	return *used < LEASES ? (int)(*used)++ : -1;
}

static void set_lo(struct seat *s, struct range *known, uint32_t k, uint64_t lo)
{
	known[k].lo = lo;
	store_relaxed(&s->range[k].lo, lo);
}

static void set_hi(struct seat *s, struct range *known, uint32_t k, uint64_t hi)
{
	known[k].hi = hi;
	store_relaxed(&s->range[k].hi, hi);
}

/* Writes a range into the free entry `k` of the seat and of `known`, the owner's copy. */
static void set_range(struct seat *s, struct range *known, uint32_t k, uint64_t lo, uint64_t hi)
{
	set_hi(s, known, k, hi);
	crash_order();
	set_lo(s, known, k, lo);
}

/* Strikes [lo, hi) wherever it is recorded. Returns false, without a change, if a range has to be
 * split and no entry is free. A consumer's ranges do not overlap, so one range at most is split. */
bool ranges_remove(struct seat *s, struct range *known, uint32_t *used, uint64_t lo, uint64_t hi)
{
	for (uint32_t k = 0; k < *used; k++) {
		uint64_t a = known[k].lo, word = known[k].hi, b = RANGE_END(word);
		uint64_t cut = RANGE_WORD(lo, RANGE_BEFORE(word));

		if (a == NONE || a >= hi || b <= lo)
			continue;
		if (a >= lo && b <= hi) {
			set_lo(s, known, k, NONE);
		} else if (a >= lo) {
			set_lo(s, known, k, hi);
		} else if (b <= hi) {
			set_hi(s, known, k, cut);
		} else {
			int other = ranges_free_entry(known, used);

			if (other < 0)
				return false;
			/* If this process is killed before set_hi(), range k is still whole, and its end [hi, b)
			 * is recorded a second time: recovery joins the two ranges, so nothing is struck. */
			set_range(s, known, (uint32_t)other, hi, word);
			crash_order();
			set_hi(s, known, k, cut);
		}
	}
	return true;
}

/* Reads the ranges of an orphan, or of a dead owner. */
void seat_read_ranges(const struct seat *s, struct range known[LEASES])
{
	for (int k = 0; k < LEASES; k++) {
		known[k].lo = load_relaxed(&s->range[k].lo);
		known[k].hi = known[k].lo == NONE ? 0 : load_relaxed(&s->range[k].hi);
	}
}

uint64_t seat_lowest(const struct seat *s)
{
	struct range known[LEASES];

	seat_read_ranges(s, known);
	return ranges_lowest(known, LEASES);
}

/* Strikes [lo, hi) from a dead owner's seat. If that would split a range, and no entry is free,
 * the range stays recorded, and its messages are delivered again. */
static void seat_strike(struct seat *s, uint64_t lo, uint64_t hi)
{
	struct range known[LEASES];

	seat_read_ranges(s, known);
	(void)ranges_remove(s, known, &(uint32_t){LEASES}, lo, hi);
}

/* Records [lo, hi), whose messages were delivered `before` times before: extends a range that ends at lo and was
 * delivered equally often, or uses a free entry. A consumer never gets a message that it holds already, so its
 * ranges never overlap. */
int consumer_record(shmring_consumer *consumer, uint64_t lo, uint64_t hi, uint32_t before)
{
	struct seat *s = consumer->seat;
	struct range *known = consumer->range;
	uint32_t grows = LEASES;
	int entry;

	for (uint32_t k = 0; k < consumer->ranges_used; k++) {
		if (known[k].lo == NONE)
			continue;
		if (known[k].lo < hi && RANGE_END(known[k].hi) > lo)
			return fail(
			    SHMRING_E_DAMAGED,
			    "ring \"%s\": its cursors are damaged: [%llu, %llu) is to be taken by a consumer "
			    "that holds some of it already",
			    consumer->ring->name, (unsigned long long)lo, (unsigned long long)hi);
		if (known[k].hi == RANGE_WORD(lo, before))
			grows = k;
	}
	if (grows < LEASES) {
		set_hi(s, known, grows, RANGE_WORD(hi, before));
		return SHMRING_OK;
	}
	entry = ranges_free_entry(known, &consumer->ranges_used);
	if (entry < 0)
		return fail(
		    SHMRING_E_LEASES,
		    "this consumer of ring \"%s\" holds %d separate leases already; release some, or copy what "
		    "you keep",
		    consumer->ring->name, LEASES);
	set_range(s, known, (uint32_t)entry, lo, RANGE_WORD(hi, before));
	return SHMRING_OK;
}

/* Returns the largest number of earlier deliveries of any message in [lo, hi). This consumer holds the
 * messages. */
uint32_t consumer_delivered_before(const shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	uint32_t most = 0;

	for (uint32_t k = 0; k < consumer->ranges_used; k++)
		if (consumer->range[k].lo < hi && RANGE_END(consumer->range[k].hi) > lo &&
		    RANGE_BEFORE(consumer->range[k].hi) > most)
			most = RANGE_BEFORE(consumer->range[k].hi);
	return most;
}

/* Returns the end of the held range that contains `lo`, but at most `hi`. All messages in between were delivered
 * equally often, because each range has one count. */
uint64_t consumer_end_of_count(const shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	for (uint32_t k = 0; k < consumer->ranges_used; k++) {
		uint64_t end = RANGE_END(consumer->range[k].hi);

		if (consumer->range[k].lo <= lo && end > lo)
			return end < hi ? end : hi;
	}
	return hi;
}

/* Marks [lo, hi) for the next takes of this consumer, which deliver it again; the range stays recorded in this
 * seat. The caller has reserved room for it (deferred_reserve).
 * Also raises ranges_used to 2, which keeps shmring_release() from its fast path: only its slow path,
 * release_any(), refuses to release messages that were handed back. */
void consumer_gives_again(shmring_consumer *consumer, uint64_t lo, uint64_t hi)
{
	deferred_join(&consumer->returned, &lo, &hi);
	deferred_put(&consumer->returned, lo, hi);
	if (consumer->ranges_used < 2) { /* makes releases go to release_any(), which checks `returned` */
		consumer->range[consumer->ranges_used].lo = NONE;
		consumer->ranges_used = 2;
	}
	store_relaxed(&consumer->gives_again, true);
}

/* Splits range `k` into two ranges that meet at sequence `at`. Returns false if no entry is free. */
static bool split_range(shmring_consumer *consumer, uint32_t k, uint64_t at)
{
	struct range *known = consumer->range;
	int other = ranges_free_entry(known, &consumer->ranges_used);

	if (other < 0)
		return false;
	/* If this process is killed before set_hi(), range k is still whole, and its part from `at` on is recorded
	 * a second time: recovery joins the two ranges. */
	set_range(consumer->seat, known, (uint32_t)other, at, known[k].hi);
	crash_order();
	set_hi(consumer->seat, known, k, RANGE_WORD(at, RANGE_BEFORE(known[k].hi)));
	return true;
}

/* Records that [lo, hi), which this consumer holds, was delivered `before` times before. Splits ranges that lie
 * only partly in [lo, hi). A range that cannot be split, because no entry is free, keeps its old count. */
void consumer_count_delivery(shmring_consumer *consumer, uint64_t lo, uint64_t hi, uint32_t before)
{
	struct range *known = consumer->range;
	uint32_t k = 0;

	while (k < consumer->ranges_used) {
		uint64_t a = known[k].lo, b = RANGE_END(known[k].hi);
		bool counts = a != NONE && a < hi && b > lo && RANGE_BEFORE(known[k].hi) != before;

		if (counts && (a < lo || b > hi) && split_range(consumer, k, a < lo ? lo : hi)) {
			k = 0;
			continue;
		}
		if (counts && a >= lo && b <= hi)
			set_hi(consumer->seat, known, k, RANGE_WORD(b, before));
		k++;
	}
}

/* --- messages to be taken ----------------------------------------------------------- */

/* Finds the end of up to max_messages readable messages from `at` on. *messages is their number, without
 * aborted runs and end markers. The scan stops before an end marker if it has found messages, and otherwise
 * after the end marker, with *marker set to true. */
int scan_messages(const shmring *r, uint64_t at, uint64_t limit, uint32_t max_messages, uint64_t max_slots,
		  uint64_t *end, uint32_t *messages, bool *marker)
{
	uint64_t from = at;
	uint32_t n = 0;

	*marker = false;
	if (max_slots > r->capacity)
		max_slots = r->capacity;
	while (n < max_messages && at < limit && at - from < r->capacity && is_published(r, at)) {
		struct entry e;

		RETURN_NOT_OK(entry_read(r, at, &e));
		if (e.kind == KIND_END && n)
			break;
		if (e.flags & FLAG_ONES) {
			uint64_t ones = e.run;

			if (ones > max_messages - n)
				ones = max_messages - n;
			if (ones > limit - at)
				ones = limit - at;
			if (at - from + ones > max_slots)
				ones = at - from < max_slots ? max_slots - (at - from) : !n;
			if (!ones)
				break;
			at += ones;
			n += (uint32_t)ones;
			continue;
		}
		if (e.next > limit || (e.next - from > max_slots && (n || e.next - from > r->capacity)))
			break;
		at = e.next;
		if (__builtin_expect(e.kind == KIND_END, 0)) {
			*marker = true;
			break;
		}
		n += e.kind != KIND_ABORTED;
	}
	*end = at;
	*messages = n;
	return SHMRING_OK;
}

/* Returns the sequence up to which the upstream branches let this consumer take. Uses the
 * cached sequence only if graph.changes has not changed since, because a change may give an upstream's number
 * to another branch. */
uint64_t consumer_limit(shmring_consumer *consumer, uint64_t t)
{
	shmring *r = consumer->ring;
	uint32_t changes = load_acquire(&r->cursors->graph.changes);
	uint64_t upstream = load_relaxed(&consumer->branch->d.upstream);
	uint64_t released;

	if (!upstream)
		return NONE;
	if (changes == consumer->graph_changes && consumer->upstream_released > t)
		return consumer->upstream_released;
	released = upstream_released(r, upstream);
	if (load_relaxed(&r->cursors->graph.changes) != changes)
		return t; /* the branches changed while the limit was computed: take nothing now */
	consumer->graph_changes = changes;
	consumer->upstream_released = released;
	return released;
}

/* --- `taken` and holds -------------------------------------------------------------- */

/* Marks the last taker's take as done; `t` is the sequence at which that take ended. */
void confirm(shmring_consumer *consumer, uint32_t last, uint64_t t)
{
	uint64_t *take_end = &consumer->ring->seats[last].lease.take_end;
	uint64_t done = TAKE_WORD(t, consumer->branch_index);
	uint64_t pending = done | TAKE_PENDING;

	/* The load is relaxed, because the last taker stored take_end before it moved `taken` to `t` (a release),
	 * and the caller has acquired that `taken`. The CAS is relaxed, because the caller then moves `taken` (a
	 * release). */
	if (load_relaxed(take_end) == pending)
		(void)cas_relaxed(take_end, &pending, done);
}

void consumer_raise_hold(shmring_consumer *consumer)
{
	uint64_t low = ranges_lowest(consumer->range, consumer->ranges_used);

	if (low == NONE)
		consumer->ranges_used = 0;
	raise_hold(consumer, low);
}

/* Announces, as the hold of a consumer of a branch with drop_oldest, that the consumer wants
 * to read from `at`, and only then checks whether the floor is moving past `at` (floor.c).
 * Returns the sequence at which the consumer can begin to read; messages before it are lost. */
uint64_t consumer_stake(shmring_consumer *consumer, uint64_t at)
{
	uint64_t next;

	if (at < load_relaxed(&consumer->seat->lease.hold))
		store_relaxed(&consumer->seat->lease.hold, at);
	light_barrier(consumer->ring->asymmetric); /* pairs with the heavy one in floor_advance() */
	next = load_acquire(&consumer->ring->cursors->floor_next.v);
	return next > at ? next : at;
}

int consumer_overrun(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	consumer->overrun_first = first;
	consumer->overrun_end = end;
	count(&consumer->seat->counters.overrun, end - first);
	return fail(SHMRING_OVERRUN,
		    "ring \"%s\": the branch fell too far behind and lost %llu sequences, %llu to %llu",
		    consumer->ring->name, (unsigned long long)(end - first), (unsigned long long)first,
		    (unsigned long long)(end - 1));
}

/* Returns true if sequence `at` lies between messages: a recorded range begins or ends at `at`, or a published
 * message begins there. Only a message's first control entry shows its own sequence; the entries of its other
 * slots show the sequence of an earlier lap, or 0. */
static bool is_boundary(const shmring_consumer *consumer, uint64_t at)
{
	for (uint32_t k = 0; k < consumer->ranges_used; k++)
		if (consumer->range[k].lo != NONE &&
		    (consumer->range[k].lo == at || RANGE_END(consumer->range[k].hi) == at))
			return true;
	return is_published(consumer->ring, at);
}

static bool is_held(const shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	uint64_t at = first;
	uint32_t k = 0;

	while (at < end && k < consumer->ranges_used) {
		if (consumer->range[k].lo <= at && RANGE_END(consumer->range[k].hi) > at) {
			at = RANGE_END(consumer->range[k].hi);
			k = 0; /* search all ranges again: the one that goes on at `at` may have any index */
		} else {
			k++;
		}
	}
	return first < end && at >= end;
}

static int fail_boundary(const shmring_consumer *consumer, uint64_t at, uint64_t first, uint64_t end)
{
	const shmring *r = consumer->ring;
	uint64_t published = load_relaxed(&control_at(r, at)->published);

	/* In a sound entry, `published` is 0 (never published) or comes from an earlier lap of this slot. */
	if (published && (published > at || (published - 1 - at) & r->mask))
		return fail(SHMRING_E_DAMAGED,
			    "ring \"%s\": the control entry of message %llu is damaged (published as %llu)",
			    r->name, (unsigned long long)at, (unsigned long long)(published - 1));
	return fail(SHMRING_E_INVALID, "ring \"%s\": [%llu, %llu) begins or ends inside a message", r->name,
		    (unsigned long long)first, (unsigned long long)end);
}

/* Checks that this consumer holds all of [first, end), and that the range begins and ends between
 * messages: a hold that began inside a message would stop the floor there, where no branch can begin. */
int consumer_check_held(const shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	if (!is_held(consumer, first, end))
		return fail(SHMRING_E_INVALID,
			    "ring \"%s\": [%llu, %llu) is not held by this consumer, or not all of it",
			    consumer->ring->name, (unsigned long long)first, (unsigned long long)end);
	if (!is_boundary(consumer, first))
		return fail_boundary(consumer, first, first, end);
	return is_boundary(consumer, end) ? SHMRING_OK : fail_boundary(consumer, end, first, end);
}

int fail_returned(const shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	return fail(SHMRING_E_INVALID, "ring \"%s\": some of [%llu, %llu) is handed back already",
		    consumer->ring->name, (unsigned long long)first, (unsigned long long)end);
}

/* --- after a death ------------------------------------------------------------------ */

/* Joins ranges of a seat that overlap. Two ranges overlap if the seat's owner was killed while it split a range:
 * the second part is then recorded twice. The needless entry may have been the last free one, and the next call of
 * seat_strike() may need a free entry. With `touching`, also joins adjacent ranges that were delivered equally
 * often.
 */
void seat_join_ranges(struct seat *s, bool touching)
{
	struct range known[LEASES];

	seat_read_ranges(s, known);
	for (uint32_t k = 0; k < LEASES; k++)
		for (uint32_t j = 0; known[k].lo != NONE && j < LEASES; j++) {
			uint64_t end = RANGE_END(known[k].hi), at = known[j].lo;

			if (at == NONE || j == k || at < known[k].lo || at > end ||
			    (at == end && !(touching && RANGE_BEFORE(known[j].hi) == RANGE_BEFORE(known[k].hi))))
				continue;
			if (RANGE_END(known[j].hi) > end) /* `hi` also holds the count of deliveries */
				set_hi(s, known, k, known[j].hi);
			crash_order();
			set_lo(s, known, j, NONE);
			j = UINT32_MAX; /* restart at entry 0: the longer range may touch ranges before j */
		}
}

/* Settles a lease that a dead owner was moving between this seat and another seat: if the other seat records the
 * lease, the other seat keeps it; otherwise this seat does. */
static void settle_move(shmring *r, struct seat *s, struct branch *b)
{
	uint64_t from = load_relaxed(&s->lease.adopt_from) & ~ADOPT_AWAY;
	bool away = load_relaxed(&s->lease.adopt_from) & ADOPT_AWAY;
	uint64_t lo = load_relaxed(&s->lease.adopt_lo), hi = load_relaxed(&s->lease.adopt_hi);

	if (from && from <= r->seat_count) {
		const struct seat *other = &r->seats[from - 1];
		bool recorded = !away || (load_relaxed(&other->id.state) == SEAT_ORPHAN &&
					  load_relaxed(&other->id.branch) == load_relaxed(&s->id.branch));

		for (int k = 0; recorded && k < LEASES; k++) {
			uint64_t at = load_relaxed(&other->range[k].lo);

			if (away ? at > lo || RANGE_END(load_relaxed(&other->range[k].hi)) < hi : at != lo)
				continue;
			if (away)
				fetch_or_seq_cst(&b->d.consumers[(from - 1) / 64], UINT64_C(1)
										       << ((from - 1) % 64));
			seat_strike(s, lo, hi);
		}
	}
	crash_order();
	store_relaxed(&s->lease.adopt_from, 0);
}

void settle_take(shmring *r, struct seat *s, uint32_t index, struct branch *b)
{
	/* Load `taken` first. The next consumer clears TAKE_PENDING in this seat's take_end (confirm), and then
	 * moves `taken`. If take_end were loaded first, both could happen between the loads: a take that succeeded
	 * would look like one that failed, and its messages would be lost. */
	uint64_t taken = load_acquire(&b->taken.v);
	uint64_t take_end = load_relaxed(&s->lease.take_end);
	uint64_t end = TAKE_END(take_end);

	seat_join_ranges(s, false);
	settle_move(r, s, b);
	crash_order();
	if (take_end & TAKE_PENDING) {
		if (taken != (end << 8 | index))
			seat_strike(s, load_relaxed(&s->lease.take_lo), end);
		crash_order();
		store_release(&s->lease.take_end, take_end & ~TAKE_PENDING);
	}
}
