/* The queue table of a ring, which may be running, dead or damaged.
 *
 * This reader holds nothing, so a slot may be overwritten while it is copied.
 * It copies with relaxed loads and then reads the floor: a producer writes into
 * a slot only after it has seen (acquire) a floor beyond the old message, and it
 * passes a release fence before it writes (shmring_next). This fence pairs with the
 * acquire fence below: a reader that has copied a new byte sees that floor, and
 * discards the copy.
 */
#include <string.h>

#include "cells.h"
#include "takes.h"

static uint32_t reference_count(const shmring *r, uint64_t sequence)
{
	uint32_t n = 0;

	for (uint64_t m = load_acquire(&r->cursors->graph.active); m; m &= m - 1) {
		const struct branch *b = &r->cursors->branch[__builtin_ctzll(m)];
		bool held;

		if (branch_released(r, b, false) > sequence)
			continue; /* the branch has released the message */
		held = (load_acquire(&b->taken.v) >> 8) <= sequence; /* the branch has not taken the message yet */
		for (uint32_t i = 0; !held && i < r->seat_count; i++)
			if (load_acquire(&b->d.consumers[i / 64]) >> (i % 64) & 1)
				for (int k = 0; !held && k < LEASES; k++) {
					uint64_t lo = load_relaxed(&r->seats[i].range[k].lo);

					held = lo != NONE && lo <= sequence &&
					       sequence < RANGE_END(load_relaxed(&r->seats[i].range[k].hi));
				}
		n += held;
	}
	return n;
}

/* Returns false for a message inside an open claim. In a claim of several messages, the entries after the first
 * get their sequences early; the first entry gets its sequence last, which publishes all of them. The
 * caller has seen (acquire) the message's sequence in its entry, so this function sees the claim's
 * intent, which the producer stored earlier. */
static bool is_committed(const shmring *r, uint64_t sequence)
{
	for (uint32_t i = 0; i < r->seat_count; i++) {
		/* A relaxed load is enough: if it sees that a claim has ended, the acquire fence that the caller
		 * passes later makes the caller see the publication, too. */
		uint64_t lo = load_relaxed(&r->seats[i].intent.lo);

		if (lo != NONE && lo <= sequence && sequence - lo < load_acquire(&r->seats[i].intent.n) &&
		    !is_published(r, lo))
			return false;
	}
	return true;
}

int shmring_table_row(const shmring *r, uint64_t index, struct shmring_row *row, void *message, size_t capacity)
{
	const struct control *c;
	uint64_t published, sequence;
	struct entry e;
	uint64_t time;
	int status;

	if (index >= r->capacity)
		return fail(SHMRING_E_INVALID, "ring \"%s\" has no slot %llu", r->name, (unsigned long long)index);
	memset(row, 0, sizeof *row);
	row->slot = index;
	c = &r->control[index];
	published = load_acquire(&c->published);
	sequence = published - 1;
	if (published == 0 || index_of(r, sequence) != index || sequence < load_acquire(&r->cursors->floor.v) ||
	    !is_committed(r, sequence))
		return SHMRING_OK; /* no message: never used, free to be overwritten, or not yet committed */
	status = entry_read(r, sequence, &e);
	time = load_relaxed(&c->time);
	if (!status && e.kind != KIND_ABORTED) {
		copy_racy(message, slot_at(r, sequence) + e.shift, e.length < capacity ? e.length : capacity);
		row->reference_count = reference_count(r, sequence);
	}
	/* Pairs with the release fence in shmring_next(). */
	fence_acquire();
	if (load_relaxed(&r->cursors->floor.v) > sequence || load_relaxed(&c->published) != published) {
		row->reference_count = 0;
		return SHMRING_OK; /* a producer has overwritten the message during the copy: discard it */
	}
	if (status || e.kind == KIND_ABORTED)
		return status;
	row->message_id = sequence;
	row->time = time;
	row->length = e.length;
	row->kind = e.kind;
	row->filled = true;
	return SHMRING_OK;
}

/* Maximum number of entries that a count of waiting messages passes; the rest is estimated from them. A choice:
 * the number of slots of a ring of the default size. */
#define STEPS 65536

/* Reads the entry at `at`. Sets *next to the end of the message or run that begins there, and *messages to its
 * number of messages. Returns false if nothing is published at `at`, or the entry was overwritten meanwhile. */
static bool count_run(const shmring *r, uint64_t at, uint64_t *next, uint64_t *messages)
{
	const struct control *c = control_at(r, at);
	struct entry e;
	bool sound;

	if (!shows(c, at))
		return false;
	sound = entry_unpack(r, c, at, &e);
	fence_acquire(); /* keeps the reads of the entry before the second read of `published` */
	if (!sound || load_relaxed(&c->published) != at + 1)
		return false;
	*next = at + e.run;
	*messages = e.flags & FLAG_ONES ? e.run : e.kind != KIND_ABORTED && e.kind != KIND_END;
	return true;
}

/* Counts the messages of [from, end), up to the first sequence that is not published. */
static uint64_t count_between(const shmring *r, uint64_t from, uint64_t end)
{
	uint64_t next, messages, n = 0;

	for (uint64_t at = from; at < end && count_run(r, at, &next, &messages); at = next)
		n += next > end && messages > 1 ? end - at : messages;
	return n;
}

/* Counts messages below `position` that were taken and will be delivered again, because their consumer has died
 * or has handed them back. */
static uint64_t count_redelivery(const shmring *r, const struct branch *b, uint64_t position)
{
	uint64_t floor = load_relaxed(&r->cursors->floor.v), n = 0;
	struct range known[LEASES];

	for (uint32_t i = 0; i < r->seat_count; i++) {
		uint32_t state = load_relaxed(&r->seats[i].id.state);

		if (!(load_relaxed(&b->d.consumers[i / 64]) >> (i % 64) & 1) ||
		    !(state == SEAT_ORPHAN || (state == SEAT_ACTIVE && !seat_alive(r, i))))
			continue;
		seat_read_ranges(&r->seats[i], known);
		for (uint32_t k = 0; k < LEASES; k++) {
			uint64_t lo = known[k].lo > floor ? known[k].lo : floor, hi = RANGE_END(known[k].hi);

			if (known[k].lo != NONE)
				n += count_between(r, lo, hi < position ? hi : position);
		}
	}
	return n;
}

int shmring_count_waiting(const shmring *r, uint32_t branch, uint64_t *messages)
{
	struct shmring_branch_info info;
	uint64_t from = 0, at = 0, end = 0, n = 0, more;

	for (int step = 0; step < STEPS; step++) {
		uint64_t floor = load_relaxed(&r->cursors->floor.v), next;

		/* Begin, or begin anew because the message at `at` may be overwritten by now. Count only to the
		 * present claim word, because producers go on claiming. */
		if (step == 0 || at < floor) {
			end = load_relaxed(&r->cursors->claim.v);
			RETURN_NOT_OK(shmring_branch_info(r, branch, &info));
			from = at = info.position > floor ? info.position : floor;
			n = 0;
		}
		if (at >= end)
			break;
		if (!count_run(r, at, &next, &more)) {
			/* If a message of a later lap has overwritten the entry, this load sees the floor beyond
			 * `at`: begin anew. Otherwise the count ends here, at an entry unpublished or damaged. */
			if (at < load_relaxed(&r->cursors->floor.v))
				continue;
			end = at;
			break;
		}
		at = next;
		n += more;
	}
	more = end > at && at > from ? (end - at) * n / (at - from) : 0;
	more += count_redelivery(r, branch_at(r, branch), info.position);
	/* The count may exceed the capacity, because the claim was read later than the floor. */
	*messages = n + more < r->capacity ? n + more : r->capacity;
	return SHMRING_OK;
}
