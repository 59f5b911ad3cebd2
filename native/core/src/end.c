/* The end of a stream: one marker ends the stream for every consumer of every branch, once.
 *
 * A branch counts the ends that it has reached. A consumer that finds a marker at
 * `taken` first counts the end and then moves `taken` past the marker. So a consumer that
 * could take messages after the marker sees the count, and returns "ended" first. `ended`
 * is the sequence after the last end that was counted: a consumer that finds a marker before
 * `ended` does not count it again. Each consumer remembers how many ends it has reported, and
 * reports the other ends one by one. docs/protocol.md, P11.
 */
#include "cells.h"
#include "takes.h"

/* Looks from `from` on for markers that belong to the same end as the marker that ends at `ended`.
 * Returns the sequence after the last of them, or `from` if there is none. Two markers are one end if
 * only aborted claims lie between them, and the later marker's producer began its stream before the
 * earlier marker. A producer that began after the earlier marker has ended a stream of its own,
 * without messages. */
static uint64_t behind_markers(const shmring *r, uint64_t from, uint64_t limit, uint64_t ended)
{
	uint64_t at = from, end = from;
	struct entry e;

	while (at - from < r->capacity && at < limit && is_published(r, at) &&
	       entry_read(r, at, &e) == SHMRING_OK && e.next <= limit &&
	       (e.kind == KIND_END || e.kind == KIND_ABORTED)) {
		if (e.kind == KIND_END) {
			if (at - e.crc >= ended)
				break;
			end = ended = e.next;
		}
		at = e.next;
	}
	return end;
}

/* Counts an end for a branch that stands at `seen`, before a marker. The marker, and later markers of
 * the same end, lie before `end`. Returns false if the branch has moved on: then the entries that
 * were read may have been overwritten and prove nothing. */
static bool announce(shmring_consumer *consumer, uint64_t seen, uint64_t end)
{
	uint64_t *word = &consumer->branch->taken.ended;
	uint64_t ends = load_relaxed(&consumer->branch->taken.ends);
	uint64_t before = load_relaxed(word), after;

	fence_acquire(); /* keeps the reads of the marker before this read of `taken` */
	if (load_relaxed(&consumer->branch->taken.v) != seen)
		return false;
	/* Several consumers may find this end, and see different markers of it: the CAS counts the end once. */
	do {
		bool first = ENDED_AT(before) <= seen >> 8;
		uint64_t at = end > ENDED_AT(before) ? end : ENDED_AT(before);

		after = at << 8 | (uint8_t)(before + first);
	} while (after != before && !cas_seq_cst(word, &before, after));
	/* `ends` is the full count of ends; `ended` has the low 8 bits of the count, and was raised first. Every
	 * consumer raises `ends` before it moves the branch on, so `ends` is at most one too low here. If the low
	 * bits differ, raise `ends` by one. The CAS fails if another consumer has raised `ends` meanwhile. */
	if ((uint8_t)ends != (uint8_t)after)
		(void)cas_seq_cst(&consumer->branch->taken.ends, &ends, ends + 1);
	return true;
}

/* Moves the branch over aborted runs and end markers, which no consumer has to hold:
 * a consumer that dies here leaves nothing behind. */
bool consumer_pass_over(shmring_consumer *consumer, uint64_t seen, uint64_t end, bool marker)
{
	bool moved = move_taken(consumer, seen, end);

	consumer_raise_hold(consumer); /* wakes branches that follow, and ends the hold of consumer_stake() */
	if (moved && marker) /* wakes all consumers, because each has to report the end */
		wake_branches(consumer->ring, UINT64_C(1) << consumer->branch_index);
	return moved;
}

/* Passes an end marker that ends at `end`. Returns false if another consumer was faster. Otherwise the
 * branch then stands after the marker. But if this consumer takes ends as messages, the branch still
 * stands before the marker, and *as_message is true. */
bool consumer_at_end(shmring_consumer *consumer, uint64_t seen, uint64_t end, uint64_t limit, bool *as_message)
{
	*as_message = consumer->takes_ends;
	if (!consumer->takes_ends)
		end = behind_markers(consumer->ring, end, limit, end);
	if (!announce(consumer, seen, end)) {
		consumer_raise_hold(consumer);
		return false;
	}
	if (!consumer->takes_ends)
		return consumer_pass_over(consumer, seen, end, true);
	consumer->found = load_relaxed(&consumer->branch->taken.ends);
	return true;
}

/* Notes that this consumer has taken the end marker as a message: it need not report the end. */
void consumer_has_end(shmring_consumer *consumer)
{
	store_relaxed(&consumer->heard, consumer->found);
	wake_branches(consumer->ring, UINT64_C(1) << consumer->branch_index);
}

/* Returns true if this consumer has an end to report while the branch stands at `t`. It reports
 * the last end only when the branch has passed that end: if the consumer that counted the end
 * died before it passed the marker, the marker has to be passed first. */
bool consumer_is_ended(const shmring_consumer *consumer, uint64_t t)
{
	uint64_t untold = load_relaxed(&consumer->branch->taken.ends) - load_relaxed(&consumer->heard);

	return untold > 1 || (untold == 1 && t >= ENDED_AT(load_relaxed(&consumer->branch->taken.ended)));
}

/* Returns true if the branch stands at an end while leases of dead consumers await adoption. The leases
 * come first, and messages after the end must not be taken yet. Without this check, a wait would end at
 * once, and the next try would find nothing to take. */
bool end_has_to_wait(const shmring_consumer *consumer)
{
	const struct branch *b = consumer->branch;
	uint64_t upstream = load_relaxed(&b->d.upstream), seen, end;
	uint32_t messages;
	bool marker = false;

	if (!load_relaxed(&b->d.orphans))
		return false;
	seen = load_acquire(&b->taken.v);
	if (!consumer_is_ended(consumer, seen >> 8) &&
	    (scan_messages(consumer->ring, seen >> 8,
			   upstream ? upstream_released(consumer->ring, upstream) : NONE, 1, 1, &end, &messages,
			   &marker) ||
	     !marker))
		return false;
	fence_acquire(); /* keeps the reads of the marker before the reads below */
	return load_relaxed(&b->taken.v) == seen &&
	       !(load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST &&
		 load_relaxed(&consumer->ring->cursors->floor_next.v) > seen >> 8);
}

/* Starts a new consumer, which does not report earlier ends. Also passes markers that belong to an end
 * that the branch has already passed. */
void consumer_begins(shmring_consumer *consumer)
{
	struct branch *b = consumer->branch;
	uint64_t seen, t, end, word;

	do {
		word = load_acquire(&b->taken.ended);
		seen = load_acquire(&b->taken.v);
		end = t = seen >> 8;
		if (load_relaxed(&b->d.options) & BRANCH_DROP_OLDEST && consumer_stake(consumer, t) != t)
			break;
		if (word && t <= ENDED_AT(word))
			end = behind_markers(consumer->ring, t, consumer_limit(consumer, t), ENDED_AT(word));
	} while (end > t && !(announce(consumer, seen, end) && consumer_pass_over(consumer, seen, end, true)));
	consumer_raise_hold(consumer);
	store_relaxed(&consumer->heard, load_relaxed(&b->taken.ends));
}

void shmring_consumer_hear_ends(shmring_consumer *consumer, uint64_t since)
{
	/* A larger `since` comes from an earlier branch of this name, and is ignored. */
	if (since < load_relaxed(&consumer->heard))
		store_relaxed(&consumer->heard, since);
}

void shmring_consumer_take_ends(shmring_consumer *consumer, bool as_messages)
{
	consumer->takes_ends = as_messages;
}
