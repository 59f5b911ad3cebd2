/* Consumers: take, read, release.
 *
 * take:    record the range in the seat (and hold), mark the take pending;
 *          then taken: (t, last taker) -> (end, me) by CAS; then mark it done
 * release: strike the range from the seat; then raise hold
 *
 * The state of takes and what recovery makes of it: takes.c. docs/protocol.md, P5.
 */
#include <stdlib.h>

#include "adopt.h"
#include "branches.h"
#include "cells.h"
#include "contention.h"
#include "deferred.h"
#include "end.h"
#include "error.h"
#include "floor.h"
#include "graph.h"
#include "holder.h"
#include "participants.h"
#include "recovery.h"
#include "seats.h"
#include "takes.h"
#include "wake.h"

/* --- joining and leaving ------------------------------------------------------ */

int shmring_join(shmring *r, const char *branch, const struct shmring_branch_options *options, const char *name,
		 shmring_consumer **out)
{
	int status = check_writable(r);
	shmring_consumer *m;
	uint32_t id = 0;

	if (status)
		return status;
	m = calloc(1, sizeof *m);
	if (!m)
		return fail(SHMRING_E_NO_MEMORY, "out of memory");
	status = admin_enter(r);
	if (status) {
		free(m);
		return status;
	}
	/* The seat comes first: finding one may need recovery, which would drop an
	 * ephemeral branch without a consumer. */
	status = seat_take(r, ROLE_CONSUMER, name, BRANCHES, &m->seat_index);
	if (!status) {
		status = subscribe_locked(r, branch, options, true, &id);
		if (status)
			seat_give_back(r, m->seat_index);
	}
	if (!status) {
		m->ring = r;
		m->seat = &r->seats[m->seat_index];
		store_relaxed(&m->seat->id.branch, id);
		m->branch = &r->cursors->branch[id];
		m->branch_index = id;
		/* Before the first stake and the first take: pairs with the acquire in branch_released(). */
		fetch_or_seq_cst(&m->branch->d.consumers[m->seat_index / 64], UINT64_C(1) << (m->seat_index % 64));
		consumer_begins(m);
	}
	admin_leave(r);
	if (status) {
		free(m);
		return status;
	}
	*out = m;
	return SHMRING_OK;
}

void shmring_consumer_close(shmring_consumer *m)
{
	shmring *r;

	if (!m || !is_owned(m->ring)) /* a child frees nothing: see lock_file_forget() */
		return;
	if (m->gives_again) { /* is not to be released */
		shmring_consumer_abandon(m);
		return;
	}
	r = m->ring;
	for (int k = 0; k < LEASES; k++)
		store_relaxed(&m->seat->range[k].lo, NONE);
	store_release(&m->seat->lease.hold, NONE);
	wake_after_release(r, m->branch, NONE);
	pass_wake_up_on(m);
	if (admin_enter_to_leave(r) == SHMRING_OK) {
		fetch_and_seq_cst(&m->branch->d.consumers[m->seat_index / 64],
				  ~(UINT64_C(1) << (m->seat_index % 64)));
		seat_give_back(r, m->seat_index);
		branch_consumer_left(r, m->branch_index);
		admin_leave(r);
	} else {
		seat_abandon(r, m->seat_index);
	}
	deferred_free(&m->deferred);
	deferred_free(&m->returned);
	free(m);
}

void shmring_consumer_abandon(shmring_consumer *m)
{
	bool entered;

	if (!m || !is_owned(m->ring))
		return;
	entered = admin_enter_to_leave(m->ring) == SHMRING_OK;
	seat_abandon(m->ring, m->seat_index);
	if (entered) {
		(void)recover_seat(m->ring, m->seat_index);
		if (load_relaxed(&m->ring->seat) == NOBODY)
			(void)handle_seat(m->ring);
		admin_leave(m->ring);
	}
	deferred_free(&m->deferred);
	deferred_free(&m->returned);
	free(m);
}

uint32_t shmring_consumer_branch(const shmring_consumer *m)
{
	return m->branch_index;
}

uint64_t shmring_consumer_hold(const shmring_consumer *m)
{
	return ranges_lowest(m->range, m->ranges_used);
}

/* --- what is rare in a take ---------------------------------------------------- */

/* SHMRING_AGAIN: it moved on, and the lost messages were not this branch's. */
static int check_overwritten(shmring_consumer *m, uint64_t seen)
{
	uint64_t t = seen >> 8;
	uint64_t next = consumer_stake(m, t);
	uint64_t first = load_relaxed(&m->branch->d.first);
	bool moved;

	if (next == t)
		return SHMRING_OK;
	moved = move_taken(m, seen, next);
	consumer_raise_hold(m); /* and tells the followers */
	if (!moved)
		return not_now(SHMRING_CONTENDED);
	if (first >= next && next < MAX_SEQUENCE) /* damaged beyond that: it would not stop here */
		return SHMRING_AGAIN;
	return consumer_overrun(m, first > t && first < next ? first : t, next);
}

/* Moves a branch that stands before its `first` towards it. False: it cannot move on now. */
static bool pass_over(shmring_consumer *m, uint64_t seen, uint64_t limit)
{
	uint64_t t = seen >> 8;
	uint64_t first = load_relaxed(&m->branch->d.first);
	uint64_t at = walk_runs(m->ring, t, first < limit ? first : limit);

	if (at <= t)
		return false;
	(void)move_taken(m, seen, at); /* lost: another consumer has moved it */
	consumer_raise_hold(m); /* and tells the followers */
	return true;
}

static int dropped(const shmring_consumer *m)
{
	return fail(SHMRING_E_DROPPED,
		    "ring \"%s\": the branch was dropped while this consumer was attached to it", m->ring->name);
}

static int nothing_yet(shmring_consumer *m)
{
	int status = check_lost(m->ring, m, &m->wait);

	count(&m->seat->counters.empty_waits, 1);
	return status ? status : not_now(SHMRING_UNAVAILABLE);
}

static int contended(shmring_consumer *m)
{
	count(&m->seat->counters.contended, 1);
	keep_out(&m->contention, load_relaxed(&m->seat->counters.messages));
	return not_now(SHMRING_CONTENDED);
}

/* Leases of the dead come before the end of a stream. */
static bool dead_hold_something(shmring_consumer *m)
{
	(void)shmring_recover(m->ring, NULL);
	if (!load_relaxed(&m->branch->d.orphans))
		return false;
	consumer_raise_hold(m);
	return true;
}

/* --- take ---------------------------------------------------------------------- */

/* A take is pending before its range is recorded, and the range is struck before the
 * take is done: at every point between, `taken` tells recovery whose the range is. */
static inline void take_begins(struct seat *s, uint64_t t, uint64_t word)
{
	store_relaxed(&s->lease.take_lo, t);
	crash_order();
	store_relaxed(&s->lease.take_end, word | TAKE_PENDING);
	crash_order();
}

__attribute__((cold, noinline)) static int take_undone(shmring_consumer *m, uint64_t t, uint64_t end, int status)
{
	(void)ranges_remove(m->seat, m->range, &m->ranges_used, t, end); /* a suffix: needs no entry */
	crash_order();
	store_relaxed(&m->seat->lease.take_end, TAKE_WORD(end, m->branch_index));
	consumer_raise_hold(m);
	return status;
}

/* The range is recorded and held: moves `taken`, and gives the lease. */
static inline int take_recorded(shmring_consumer *m, struct seat *s, uint64_t seen, uint64_t end, uint64_t word,
				uint32_t messages, struct shmring_lease *lease)
{
	uint64_t t = seen >> 8;

	light_barrier(m->ring->asymmetric); /* pairs with the heavy one in branch_drop() */
	if (__builtin_expect(load_relaxed(&m->branch->d.state) != BRANCH_ACTIVE, 0))
		return take_undone(m, t, end, dropped(m));
	if (__builtin_expect(!move_taken(m, seen, end), 0)) {
		(void)take_undone(m, t, end, SHMRING_CONTENDED);
		return contended(m);
	}
	/* A helper may have done it already; it can only have stored the same. */
	store_release(&s->lease.take_end, word);
	*lease = (struct shmring_lease){.first = t, .end = end, .messages = messages};
	count(&s->counters.messages, messages);
	if (__builtin_expect(load_relaxed(&m->woken), 0))
		pass_wake_up_on(m);
	return SHMRING_OK;
}

__attribute__((noinline)) static int take_any(shmring_consumer *m, uint32_t max_messages, uint64_t max_slots,
					      struct shmring_lease *lease);

/* The common case of a consumer that holds nothing: one message is next, nothing to adopt, no end
 * to report, no upstream, no overrun. False: take_any() finds out. */
static inline bool plain_next(const shmring_consumer *m, uint64_t *seen, const struct control **c, struct entry *e)
{
	const shmring *r = m->ring;
	const struct branch *b = m->branch;
	uint64_t t;

	if (__builtin_expect(!r->owned || m->ranges_used || load_relaxed(&b->d.orphans), 0))
		return false;
	*seen = load_acquire(&b->taken.v);
	t = *seen >> 8;
	*c = control_at(r, t);
	return load_relaxed(&b->taken.ends) == load_relaxed(&m->heard) && !load_relaxed(&b->d.upstream) &&
	       !(load_relaxed(&b->d.options) & (BRANCH_DROP_OLDEST | BRANCH_LATER)) && shows(*c, t) &&
	       entry_is_plain(r, *c, t, e);
}

static inline int take_plain(shmring_consumer *m, uint64_t seen, const struct entry *e,
			     struct shmring_lease *lease)
{
	struct seat *s = m->seat;
	uint64_t t = seen >> 8;
	uint64_t word = TAKE_WORD(e->next, m->branch_index);

	take_begins(s, t, word);
	store_relaxed(&s->range[0].hi, e->next);
	crash_order();
	store_relaxed(&s->range[0].lo, t);
	m->range[0] = (struct range){t, e->next};
	m->ranges_used = 1;
	/* Relaxed: the CAS that follows releases it; a reader that sees the moved `taken`
	 * (acquire) sees the hold. */
	store_relaxed(&s->lease.hold, t);
	return take_recorded(m, s, seen, e->next, word, 1, lease);
}

int shmring_take(shmring_consumer *m, uint32_t max_messages, uint64_t max_slots, struct shmring_lease *lease)
{
	const struct control *c;
	struct entry e;
	uint64_t seen;

	if (__builtin_expect(max_messages != 1 || !plain_next(m, &seen, &c, &e), 0))
		return take_any(m, max_messages, max_slots, lease);
	return take_plain(m, seen, &e, lease);
}

/* A take outside of the common case, or with a checksum. */
__attribute__((cold, noinline)) static int take_and_read(shmring_consumer *m, struct shmring_lease *lease,
							 struct shmring_message *message)
{
	int status = take_any(m, 1, 1, lease);
	uint64_t position;

	if (status)
		return status;
	position = lease->first;
	status = shmring_read(m->ring, &position, lease->end, message);
	if (status == SHMRING_UNAVAILABLE)
		status = fail(SHMRING_E_DAMAGED,
			      "ring \"%s\": message %llu was there when it was taken, and is not any more",
			      m->ring->name, (unsigned long long)lease->first);
	if (status)
		(void)shmring_release(m, lease->first, lease->end);
	return status;
}

int shmring_take_one(shmring_consumer *m, struct shmring_lease *lease, struct shmring_message *message)
{
	const struct control *c;
	struct entry e;
	uint64_t seen;
	int status;

	if (__builtin_expect(!plain_next(m, &seen, &c, &e) || e.flags & FLAG_CHECKSUM, 0))
		return take_and_read(m, lease, message);
	status = take_plain(m, seen, &e, lease);
	/* The entry is still the one that was read: no other consumer has moved `taken` over it. */
	if (__builtin_expect(status == SHMRING_OK, 1))
		describe(m->ring, c, lease->first, &e, message);
	return status;
}

static int take_any(shmring_consumer *m, uint32_t max_messages, uint64_t max_slots, struct shmring_lease *lease)
{
	shmring *r = m->ring;
	struct branch *b = m->branch;
	struct seat *s = m->seat;
	int status = check_usable(r);
	uint64_t seen, t, end;
	uint64_t limit;
	uint32_t messages;
	bool marker, as_message = false, looked = false;

	if (__builtin_expect(status != 0, 0))
		return status;
	if (max_messages == 0)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a take wants at least one message", r->name);
	if (__builtin_expect(m->gives_again, 0) && consumer_take_again(m, max_messages, max_slots, lease, &status))
		return status;
adopt:
	if (__builtin_expect(load_relaxed(&b->d.orphans) != 0, 0) &&
	    consumer_adopt(m, max_messages, max_slots, lease, &status)) {
		pass_wake_up_on(m);
		return status;
	}

again:
	seen = load_acquire(&b->taken.v);
	t = seen >> 8;
	if (__builtin_expect(load_relaxed(&b->taken.ends) != load_relaxed(&m->heard), 0) &&
	    consumer_is_ended(m, t)) {
		if (load_relaxed(&b->d.orphans)) /* as below */
			return nothing_yet(m);
		store_relaxed(&m->heard, m->heard + 1);
		return not_now(SHMRING_ENDED);
	}
	limit = consumer_limit(m, t);
	if (load_relaxed(&b->d.options) & (BRANCH_DROP_OLDEST | BRANCH_LATER)) {
		status =
		    load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST ? check_overwritten(m, seen) : SHMRING_OK;
		if (status == SHMRING_AGAIN)
			goto again;
		if (status)
			return status;
		if (load_relaxed(&b->d.options) & BRANCH_LATER && t < load_relaxed(&b->d.first)) {
			if (pass_over(m, seen, limit))
				goto again;
			limit = t; /* what comes there meanwhile is not to be taken */
		}
	}
	status = scan_messages(r, t, limit, max_messages, max_slots, &end, &messages, &marker);
	if (__builtin_expect(status || end == t, 0)) {
		if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST)
			consumer_raise_hold(m);
		if (load_acquire(&b->d.state) != BRANCH_ACTIVE)
			return dropped(m);
		/* If the branch has moved on, the entries that were read may be overwritten
		 * and prove nothing. The fence keeps their reads before this one. */
		fence_acquire();
		if (load_relaxed(&b->taken.v) != seen)
			return contended(m);
		return status ? status : nothing_yet(m);
	}

	if (__builtin_expect(messages == 0, 0)) { /* an end marker, aborted runs, or both */
		if (marker && !looked && dead_hold_something(m)) {
			looked = true;
			goto adopt;
		}
		/* It comes before the end, which does not overtake it. */
		if (marker && load_relaxed(&b->d.orphans)) {
			consumer_raise_hold(m); /* ends a stake */
			return nothing_yet(m);
		}
		if (marker ? !consumer_at_end(m, seen, end, limit, &as_message)
			   : !consumer_pass_over(m, seen, end, false))
			return contended(m);
		if (!as_message)
			goto again;
		messages = 1;
	}

	take_begins(s, t, TAKE_WORD(end, m->branch_index));
	status = consumer_record(m, t, end, 0);
	if (status) {
		store_relaxed(&s->lease.take_end, TAKE_WORD(end, m->branch_index));
		if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST)
			consumer_raise_hold(m);
		return status;
	}
	/* Relaxed: as in shmring_take(). */
	if (load_relaxed(&s->lease.hold) == NONE)
		store_relaxed(&s->lease.hold, t);
	status = take_recorded(m, s, seen, end, TAKE_WORD(end, m->branch_index), messages, lease);
	if (!status && __builtin_expect(marker, 0))
		consumer_has_end(m);
	return status;
}

/* --- release ------------------------------------------------------------------- */

__attribute__((noinline)) static int release_any(shmring_consumer *m, uint64_t first, uint64_t end);

int shmring_release(shmring_consumer *m, uint64_t first, uint64_t end)
{
	const struct range *only = &m->range[0];

	/* The common case: one lease at a time, and all of it. */
	if (__builtin_expect(!m->ring->owned || m->ranges_used != 1 || m->deferred.used || only->lo != first ||
				 only->hi != end,
			     0))
		return release_any(m, first, end);
	store_relaxed(&m->seat->range[0].lo, NONE);
	m->ranges_used = 0;
	raise_hold(m, NONE);
	return SHMRING_OK;
}

static int release_any(shmring_consumer *m, uint64_t first, uint64_t end)
{
	struct seat *s = m->seat;
	int status = check_usable(m->ring);

	if (!status)
		status = consumer_check_held(m, first, end);
	if (status)
		return status;
	if (m->gives_again && deferred_overlaps(&m->returned, first, end))
		return fail_returned(m, first, end);
	/* This comes before any change: a release that is refused changes nothing. */
	if (m->ranges_used == LEASES && !deferred_reserve(&m->deferred))
		return fail(SHMRING_E_NO_MEMORY, "out of memory; release it again later");
	if (m->deferred.used)
		deferred_join(&m->deferred, &first, &end);
	if (!ranges_remove(s, m->range, &m->ranges_used, first, end)) {
		/* No entry is free for the split: hold the range until one is, or until it lies at an end. */
		deferred_put(&m->deferred, first, end);
		return SHMRING_OK;
	}
	while (m->deferred.used && ranges_free_entry(m->range, &(uint32_t){m->ranges_used}) >= 0 &&
	       deferred_take_any(&m->deferred, &first, &end))
		(void)ranges_remove(s, m->range, &m->ranges_used, first, end);
	consumer_raise_hold(m);
	return SHMRING_OK;
}

void shmring_count_synced(shmring_consumer *m, uint64_t ns)
{
	if (is_owned(m->ring))
		count(&m->seat->later.synced_ns, ns);
}
