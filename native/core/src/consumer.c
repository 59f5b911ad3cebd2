/* Consumers: take, read, release.
 *
 * take:    mark the take pending; then record the range in the seat, and set its hold if it has none;
 *          then taken: (t, last taker) -> (end, this seat) by CAS; then mark the take done
 * release: remove the range from the seat; then raise hold
 *
 * takes.c has the state of takes, and how recovery settles it. docs/protocol.md, P5.
 */
#include "cells.h"
#include "holder.h"
#include "takes.h"

uint32_t shmring_consumer_branch(const shmring_consumer *consumer)
{
	return consumer->branch_index;
}

uint64_t shmring_consumer_hold(const shmring_consumer *consumer)
{
	return ranges_lowest(consumer->range, consumer->ranges_used);
}

/* --- rare cases of a take ------------------------------------------------------ */

/* Results of steps within a take, in addition to statuses. Statuses are never positive. */
enum { LOOK_AGAIN = 1, LOOK_FOR_ORPHANS };

/* Moves a branch with drop_oldest past messages that are being overwritten. Returns
 * SHMRING_OVERRUN if the branch lost messages. Returns LOOK_AGAIN if all overwritten messages lie before the
 * branch's `first`: they were not for this branch, so nothing is lost. */
static int check_overwritten(shmring_consumer *consumer, uint64_t seen)
{
	uint64_t t = seen >> 8;
	uint64_t next = consumer_stake(consumer, t);
	uint64_t first = load_relaxed(&consumer->branch->d.first);
	bool moved;

	if (next == t)
		return SHMRING_OK;
	moved = move_taken(consumer, seen, next);
	consumer_raise_hold(consumer); /* also wakes the branches that follow this one */
	if (!moved)
		return not_now(SHMRING_CONTENDED);
	/* A `next` beyond MAX_SEQUENCE is damage, and must not lead to LOOK_AGAIN: take_any() would look again
	 * for ever. */
	if (first >= next && next < MAX_SEQUENCE)
		return LOOK_AGAIN;
	return consumer_overrun(consumer, first > t && first < next ? first : t, next);
}

/* Moves a branch that stands before its `first`, the lowest sequence that it delivers, towards `first`. Returns
 * false if the branch cannot move now. */
static bool pass_over(shmring_consumer *consumer, uint64_t seen, uint64_t limit)
{
	uint64_t t = seen >> 8;
	uint64_t first = load_relaxed(&consumer->branch->d.first);
	uint64_t at = walk_runs(consumer->ring, t, first < limit ? first : limit);

	if (at <= t)
		return false;
	(void)move_taken(consumer, seen, at); /* if it fails, another consumer has moved the branch */
	consumer_raise_hold(consumer); /* also wakes the branches that follow this one */
	return true;
}

static int dropped(const shmring_consumer *consumer)
{
	return fail(SHMRING_E_DROPPED,
		    "ring \"%s\": the branch was dropped while this consumer was attached to it",
		    consumer->ring->name);
}

static int nothing_yet(shmring_consumer *consumer)
{
	int status = check_lost(consumer->ring, consumer, &consumer->wait);

	count(&consumer->seat->counters.empty_waits, 1);
	return status ? status : not_now(SHMRING_UNAVAILABLE);
}

static int contended(shmring_consumer *consumer)
{
	count(&consumer->seat->counters.contended, 1);
	keep_out(&consumer->contention, load_relaxed(&consumer->seat->counters.messages));
	return not_now(SHMRING_CONTENDED);
}

/* Recovers dead consumers. Returns true if leases of dead consumers are left: the branch delivers them before the
 * end of a stream. */
static bool dead_hold_something(shmring_consumer *consumer)
{
	(void)shmring_recover(consumer->ring, NULL);
	if (!load_relaxed(&consumer->branch->d.orphans))
		return false;
	consumer_raise_hold(consumer);
	return true;
}

/* --- take ---------------------------------------------------------------------- */

/* Marks a take as pending, before its range is recorded. A take that fails removes its range before it
 * clears the mark. So while the mark is set, `taken` tells recovery whether the take succeeded. */
static inline void take_begins(struct seat *s, uint64_t t, uint64_t word)
{
	store_relaxed(&s->lease.take_lo, t);
	crash_order();
	store_relaxed(&s->lease.take_end, word | TAKE_PENDING);
	crash_order();
}

__attribute__((cold, noinline)) static int take_undone(shmring_consumer *consumer, uint64_t t, uint64_t end,
						       int status)
{
	/* Removing the end of a recorded range splits nothing, so it needs no free entry. */
	(void)ranges_remove(consumer->seat, consumer->range, &consumer->ranges_used, t, end);
	crash_order();
	store_relaxed(&consumer->seat->lease.take_end, TAKE_WORD(end, consumer->branch_index));
	consumer_raise_hold(consumer);
	return status;
}

/* CHANGE: edit this for a new counter that each participant has */
/* Ends a take whose range is recorded and held: moves `taken`, and returns the lease. */
static inline int take_recorded(shmring_consumer *consumer, struct seat *s, uint64_t seen, uint64_t end,
				uint64_t word, uint32_t messages, struct shmring_lease *lease)
{
	uint64_t t = seen >> 8;

	light_barrier(consumer->ring->asymmetric); /* pairs with the heavy barrier in branch_drop() */
	if (__builtin_expect(load_relaxed(&consumer->branch->d.state) != BRANCH_ACTIVE, 0))
		return take_undone(consumer, t, end, dropped(consumer));
	if (__builtin_expect(!move_taken(consumer, seen, end), 0)) {
		(void)take_undone(consumer, t, end, SHMRING_CONTENDED);
		return contended(consumer);
	}
	/* Another consumer may have marked the take as done already (confirm()), with the same word. */
	store_release(&s->lease.take_end, word);
	*lease = (struct shmring_lease){.first = t, .end = end, .messages = messages};
	count(&s->counters.messages, messages);
	if (__builtin_expect(load_relaxed(&consumer->woken), 0))
		pass_wake_up_on(consumer);
	return SHMRING_OK;
}

__attribute__((noinline)) static int take_any(shmring_consumer *consumer, uint32_t max_messages,
					      uint64_t max_slots, struct shmring_lease *lease);

/* Returns true in the common case: the consumer holds nothing, one message is next, and there is
 * nothing to adopt, no end to report, no upstream and no overrun. take_any() handles all other cases. */
static inline bool plain_next(const shmring_consumer *consumer, uint64_t *seen, const struct control **c,
			      struct entry *e)
{
	const shmring *r = consumer->ring;
	const struct branch *b = consumer->branch;
	uint64_t t;

	if (__builtin_expect(!r->owned || consumer->ranges_used || load_relaxed(&b->d.orphans), 0))
		return false;
	*seen = load_acquire(&b->taken.v);
	t = *seen >> 8;
	*c = control_at(r, t);
	return load_relaxed(&b->taken.ends) == load_relaxed(&consumer->heard) && !load_relaxed(&b->d.upstream) &&
	       !(load_relaxed(&b->d.options) & (BRANCH_DROP_OLDEST | BRANCH_LATER)) && shows(*c, t) &&
	       entry_is_plain(r, *c, t, e);
}

static inline int take_plain(shmring_consumer *consumer, uint64_t seen, const struct entry *e,
			     struct shmring_lease *lease)
{
	struct seat *s = consumer->seat;
	uint64_t t = seen >> 8;
	uint64_t word = TAKE_WORD(e->next, consumer->branch_index);

	take_begins(s, t, word);
	store_relaxed(&s->range[0].hi, e->next);
	crash_order();
	store_relaxed(&s->range[0].lo, t);
	consumer->range[0] = (struct range){t, e->next};
	consumer->ranges_used = 1;
	/* Relaxed: the CAS of `taken` that follows releases this store. A reader that acquires the moved `taken`
	 * sees the hold. */
	store_relaxed(&s->lease.hold, t);
	return take_recorded(consumer, s, seen, e->next, word, 1, lease);
}

int shmring_take(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
		 struct shmring_lease *lease)
{
	const struct control *c;
	struct entry e;
	uint64_t seen;

	if (__builtin_expect(max_messages != 1 || !plain_next(consumer, &seen, &c, &e), 0))
		return take_any(consumer, max_messages, max_slots, lease);
	return take_plain(consumer, seen, &e, lease);
}

/* Takes and reads one message outside of the common case, or with a checksum. */
__attribute__((cold, noinline)) static int take_and_read(shmring_consumer *consumer, struct shmring_lease *lease,
							 struct shmring_message *message)
{
	uint64_t position;
	int status;

	RETURN_NOT_OK(take_any(consumer, 1, 1, lease));
	position = lease->first;
	status = shmring_read(consumer->ring, &position, lease->end, message);
	if (status == SHMRING_UNAVAILABLE)
		status = fail(SHMRING_E_DAMAGED,
			      "ring \"%s\": message %llu was there when it was taken, and is not any more",
			      consumer->ring->name, (unsigned long long)lease->first);
	if (status)
		(void)shmring_release(consumer, lease->first, lease->end);
	return status;
}

/* CHANGE: edit this for a new option of a ring */
int shmring_take_one(shmring_consumer *consumer, struct shmring_lease *lease, struct shmring_message *message)
{
	const struct control *c;
	struct entry e;
	uint64_t seen;
	int status;

	if (__builtin_expect(!plain_next(consumer, &seen, &c, &e) || e.flags & FLAG_CHECKSUM, 0))
		return take_and_read(consumer, lease, message);
	status = take_plain(consumer, seen, &e, lease);
	/* The entry is still the one that was read: no other consumer has moved `taken` over it. */
	if (__builtin_expect(status == SHMRING_OK, 1))
		describe(consumer->ring, c, lease->first, &e, message);
	return status;
}

/* Result of one look at the messages after `taken`. */
struct found {
	uint64_t seen; /* value of the word `taken` at this look */
	uint64_t limit; /* first sequence that must not be taken */
	uint64_t end; /* end of the range to take */
	uint32_t messages; /* messages in the range */
	bool marker; /* the range has an end marker */
};

/* Moves a branch with drop_oldest past messages that are being overwritten, and a branch that stands before its
 * `first`, the lowest sequence that it delivers, towards `first`. */
static int reach_first(shmring_consumer *consumer, struct found *found)
{
	const struct branch *b = consumer->branch;
	uint64_t t = found->seen >> 8;
	int status = SHMRING_OK;

	if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST)
		status = check_overwritten(consumer, found->seen);
	if (!status && load_relaxed(&b->d.options) & BRANCH_LATER && t < load_relaxed(&b->d.first)) {
		if (pass_over(consumer, found->seen, found->limit))
			return LOOK_AGAIN;
		/* Take nothing now: a message that is published at `t` after this look lies before `first`, so it
		 * is not for this branch. */
		found->limit = t;
	}
	return status;
}

/* Returns the status of a take that found nothing. */
static int find_none(shmring_consumer *consumer, uint64_t seen, int status)
{
	const struct branch *b = consumer->branch;

	if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST)
		consumer_raise_hold(consumer);
	if (load_acquire(&b->d.state) != BRANCH_ACTIVE)
		return dropped(consumer);
	/* If the branch has moved on, the entries that were read may be overwritten
	 * and prove nothing. The fence keeps the reads of the entries before this read of `taken`. */
	fence_acquire();
	if (load_relaxed(&b->taken.v) != seen)
		return contended(consumer);
	return status ? status : nothing_yet(consumer);
}

/* Passes over an end marker, aborted runs, or both, if no message comes before them. Returns SHMRING_OK if the
 * end marker is to be taken as a message. */
static int pass_no_messages(shmring_consumer *consumer, struct found *found, bool dead_are_known)
{
	bool as_message = false;

	if (found->marker && !dead_are_known && dead_hold_something(consumer))
		return LOOK_FOR_ORPHANS;
	/* Messages of dead consumers are delivered before the end, so the end is not reported yet. */
	if (found->marker && load_relaxed(&consumer->branch->d.orphans)) {
		consumer_raise_hold(consumer); /* takes back the hold that consumer_stake() announced */
		return nothing_yet(consumer);
	}
	if (found->marker ? !consumer_at_end(consumer, found->seen, found->end, found->limit, &as_message)
			  : !consumer_pass_over(consumer, found->seen, found->end, false))
		return contended(consumer);
	if (!as_message)
		return LOOK_AGAIN;
	found->messages = 1;
	return SHMRING_OK;
}

static int look_behind_taken(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			     bool dead_are_known, struct found *found)
{
	const struct branch *b = consumer->branch;
	uint64_t t;
	int status;

	found->seen = load_acquire(&b->taken.v);
	t = found->seen >> 8;
	if (__builtin_expect(load_relaxed(&b->taken.ends) != load_relaxed(&consumer->heard), 0) &&
	    consumer_is_ended(consumer, t)) {
		if (load_relaxed(&b->d.orphans)) /* messages of dead consumers are delivered before the end */
			return nothing_yet(consumer);
		store_relaxed(&consumer->heard, consumer->heard + 1);
		return not_now(SHMRING_ENDED);
	}
	found->limit = consumer_limit(consumer, t);
	if (load_relaxed(&b->d.options) & (BRANCH_DROP_OLDEST | BRANCH_LATER))
		RETURN_NOT_OK(reach_first(consumer, found));
	status = scan_messages(consumer->ring, t, found->limit, max_messages, max_slots, &found->end,
			       &found->messages, &found->marker);
	if (__builtin_expect(status || found->end == t, 0))
		return find_none(consumer, found->seen, status);
	return __builtin_expect(found->messages == 0, 0) ? pass_no_messages(consumer, found, dead_are_known)
							 : SHMRING_OK;
}

static int take_found(shmring_consumer *consumer, const struct found *found, struct shmring_lease *lease)
{
	struct seat *s = consumer->seat;
	uint64_t t = found->seen >> 8;
	uint64_t word = TAKE_WORD(found->end, consumer->branch_index);
	int status;

	take_begins(s, t, word);
	status = consumer_record(consumer, t, found->end, 0);
	if (status) {
		store_relaxed(&s->lease.take_end, word);
		if (load_relaxed(&consumer->branch->d.options) & BRANCH_DROP_OLDEST)
			consumer_raise_hold(consumer);
		return status;
	}
	/* Relaxed: take_recorded() then moves `taken` with release order, which publishes this store. */
	if (load_relaxed(&s->lease.hold) == NONE)
		store_relaxed(&s->lease.hold, t);
	status = take_recorded(consumer, s, found->seen, found->end, word, found->messages, lease);
	if (!status && __builtin_expect(found->marker, 0))
		consumer_has_end(consumer);
	return status;
}

/* Takes messages that were delivered before. If messages may be set aside (sent to the dead letters), takes them
 * one at a time: if one message kills its consumers, its neighbours must not be set aside with it. Returns true
 * if *status is the result of the take, or false if the caller has to look for new messages. */
static bool take_redelivered(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
			     struct shmring_lease *lease, int *status)
{
	uint32_t most = consumer->set_aside ? 1 : max_messages;

	do {
		if (consumer->gives_again && consumer_take_again(consumer, most, max_slots, lease, status))
			continue;
		if (!load_relaxed(&consumer->branch->d.orphans) ||
		    !consumer_adopt(consumer, most, max_slots, lease, status))
			return false;
		pass_wake_up_on(consumer);
	} while (*status == SHMRING_OK && consumer->set_aside && consumer->set_aside(consumer, lease, status));
	return true;
}

/* Takes, in this order: messages that this consumer handed back, leases of dead consumers of its branch, new
 * messages after `taken`. */
static int take_any(shmring_consumer *consumer, uint32_t max_messages, uint64_t max_slots,
		    struct shmring_lease *lease)
{
	bool dead_are_known = false;
	struct found found;
	int status;

	RETURN_NOT_OK(check_usable(consumer->ring));
	if (max_messages == 0)
		return fail(SHMRING_E_INVALID, "ring \"%s\": a take wants at least one message",
			    consumer->ring->name);
	do {
		if (__builtin_expect(consumer->gives_again || load_relaxed(&consumer->branch->d.orphans), 0) &&
		    take_redelivered(consumer, max_messages, max_slots, lease, &status))
			return status;
		do
			status = look_behind_taken(consumer, max_messages, max_slots, dead_are_known, &found);
		while (status == LOOK_AGAIN);
		dead_are_known = true;
	} while (status == LOOK_FOR_ORPHANS);
	return status ? status : take_found(consumer, &found, lease);
}

/* --- release ------------------------------------------------------------------- */

__attribute__((noinline)) static int release_any(shmring_consumer *consumer, uint64_t first, uint64_t end);

int shmring_release(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	const struct range *only = &consumer->range[0];

	/* The code below is for the common case only: the consumer holds one lease, and releases all of it. */
	if (__builtin_expect(!consumer->ring->owned || consumer->ranges_used != 1 || consumer->deferred.used ||
				 only->lo != first || only->hi != end,
			     0))
		return release_any(consumer, first, end);
	store_relaxed(&consumer->seat->range[0].lo, NONE);
	consumer->ranges_used = 0;
	raise_hold(consumer, NONE);
	return SHMRING_OK;
}

static int release_any(shmring_consumer *consumer, uint64_t first, uint64_t end)
{
	struct seat *s = consumer->seat;

	RETURN_NOT_OK(check_usable(consumer->ring));
	RETURN_NOT_OK(consumer_check_held(consumer, first, end));
	if (consumer->gives_again && deferred_overlaps(&consumer->returned, first, end))
		return fail_returned(consumer, first, end);
	/* Room is reserved before any change: a release that is refused changes nothing. */
	if (consumer->ranges_used == LEASES && !deferred_reserve(&consumer->deferred))
		return fail(SHMRING_E_NO_MEMORY, "out of memory; release it again later");
	if (consumer->deferred.used)
		deferred_join(&consumer->deferred, &first, &end);
	if (!ranges_remove(s, consumer->range, &consumer->ranges_used, first, end)) {
		/* The release would split a range, and no entry is free for the second part: keep the release
		 * until an entry is free, or until it lies at an end of a range. */
		deferred_put(&consumer->deferred, first, end);
		return SHMRING_OK;
	}
	while (consumer->deferred.used &&
	       ranges_free_entry(consumer->range, &(uint32_t){consumer->ranges_used}) >= 0 &&
	       deferred_take_any(&consumer->deferred, &first, &end))
		(void)ranges_remove(s, consumer->range, &consumer->ranges_used, first, end);
	consumer_raise_hold(consumer);
	return SHMRING_OK;
}

int shmring_release_copied(shmring_consumer *consumer, uint64_t first, uint64_t end, const void *at,
			   struct shmring_copy *copy)
{
	int status = check_usable(consumer->ring);

	if (!status)
		status = consumer_check_held(consumer, first, end);
	if (!status)
		status = copy_in_place(consumer->ring, first, end, at, copy);
	return status ? status : shmring_release(consumer, first, end);
}

void shmring_count_synced(shmring_consumer *consumer, uint64_t ns)
{
	if (is_owned(consumer->ring))
		count(&consumer->seat->counters.synced_ns, ns);
}
